"""A file with one row, or a folder with a readme alone, is trained on where somebody says so."""

import io
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import pytest

from infrastructure.commands import train
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.files import make_directory
from infrastructure.data.preparation.doubts import UnconfirmedDataError, check_meant
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.run.directory import RunDirectory
from tests.data.builders import pairs, write_jsonl


def config_of(data: Path) -> DeploymentConfig:
    return DeploymentConfig(data={"path": str(data)}, output_dir=str(data.parent / "runs"))


def one_row(folder: Path) -> Path:
    return write_jsonl(folder / "one.jsonl", pairs(1))


def readme_alone(folder: Path) -> Path:
    (folder / "project").mkdir()
    (folder / "project/README.md").write_text("# A project\n\nIt does much.\n")
    (folder / "project/main.py").write_text("print()\n")
    return folder / "project"


DOUBTFUL = {
    one_row: r"^data\.file_has_one_row\(file=one\.jsonl\): data\.confirm_small_data\(\)",
    readme_alone: (
        r"^data\.folder_only_has_document\(.*project, file=README\.md\): data\.confirm_small_data"
    ),
}


@pytest.mark.parametrize("make", DOUBTFUL)
def test_what_is_hardly_meant_is_refused_before_anything_is_loaded(
    make: Any, tmp_path: Path
) -> None:
    place = str(make(tmp_path))
    with pytest.raises(UnconfirmedDataError, match=DOUBTFUL[make]) as caught:
        check_meant(DataConfig(path=place))
    assert len(str(caught.value).replace(str(tmp_path), "")) <= 300
    check_meant(DataConfig(path=place, accept_small_data=True))
    runs = tmp_path / "runs"
    config = DeploymentConfig(data={"path": place}, output_dir=str(runs))
    lines: list[str] = []
    with pytest.raises(UnconfirmedDataError):
        TrainingDeployment(config, say=lines.append).run()
    assert (lines, runs.exists()) == ([], False)


def test_other_data_is_let_pass(tmp_path: Path) -> None:
    check_meant(DataConfig())
    check_meant(DataConfig(path=str(write_jsonl(tmp_path / "two.jsonl", pairs(2)))))
    check_meant(DataConfig(path=str(tmp_path / "missing.jsonl")))  # told where it is read
    (tmp_path / "head.csv").write_text("question,answer\n")
    check_meant(DataConfig(path=str(tmp_path / "head.csv")))  # as well
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "diary.md").write_text("One.\n\nTwo.\n")
    check_meant(DataConfig(path=str(notes)))
    (notes / "readme.md").write_text("Read me.\n")
    check_meant(DataConfig(path=str(notes)))
    write_jsonl(tmp_path / "table" / "readme.jsonl", pairs(2))
    check_meant(DataConfig(path=str(tmp_path / "table")))  # which is no document
    (notes / "readme.md").write_text("Read me.\n\nAll of it.\n")
    check_meant(DataConfig(path=str(notes / "readme.md")))  # a file that is named is meant


def test_the_format_of_a_file_decides_how_many_rows_it_has(tmp_path: Path) -> None:
    lines = (
        json.dumps({"question": "größer?", "answer": str(n)}, ensure_ascii=False) for n in "12"
    )
    first, second = (f"{line}\n".encode("latin-1") for line in lines)
    (tmp_path / "one.txt").write_bytes(first)
    given = {"path": str(tmp_path / "one.txt"), "format": "jsonl", "encoding": "latin-1"}
    with pytest.raises(UnconfirmedDataError, match=r"data\.file_has_one_row\(file=one\.txt\)"):
        check_meant(DataConfig(**given))
    (tmp_path / "one.txt").write_bytes(first + b"{broken\n")
    with pytest.raises(UnconfirmedDataError):
        check_meant(DataConfig(**given))
    (tmp_path / "one.txt").write_bytes(first + b"{broken\n" + second)
    check_meant(DataConfig(**given))


def test_one_row_in_each_of_two_files_is_meant(tmp_path: Path) -> None:
    for number in range(2):
        check = write_jsonl(tmp_path / "rows" / f"{number}.jsonl", pairs(1, number))
    check_meant(DataConfig(path=str(check.parent)))
    with pytest.raises(UnconfirmedDataError):
        check_meant(DataConfig(path=str(check)))
    datasets.Dataset.from_list(pairs(1)).save_to_disk(str(tmp_path / "saved"))
    check_meant(DataConfig(path=str(tmp_path / "saved")))  # made on purpose


class Terminal(io.StringIO):
    """Somebody sits there."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "is_meant"), [("y\n", True), ("\n", False), ("", False)])
def test_a_person_at_the_terminal_answers(
    answer: str, is_meant: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(one_row(tmp_path))
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stdout", Terminal())
    with nullcontext() if is_meant else pytest.raises(UnconfirmedDataError):
        train.confirm_data(config)
    assert config.data.accept_small_data is is_meant
    assert "data.file_has_one_row" in sys.stdout.getvalue()  # type: ignore[attr-defined]


def test_no_question_where_nobody_sits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UnconfirmedDataError):
        train.confirm_data(config_of(one_row(tmp_path)))


def test_no_question_about_a_run_that_goes_on(tmp_path: Path) -> None:
    config = config_of(one_row(tmp_path))
    run = RunDirectory(Path(config.output_dir) / "20260102-030405-small")
    make_directory(run.path)
    write_record(run.run_file, {"configuration": config.to_dict()})
    train.confirm_data(config)
    config.new_run = True
    with pytest.raises(UnconfirmedDataError):
        train.confirm_data(config)
