"""A file with one row, or a folder with a readme alone, is trained on where somebody says so."""

import io
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands import train
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.deployment import one_call
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.training.data.preparation.doubts import UnconfirmedDataError, check_meant
from tests.training.data.builders import pairs, write_jsonl


def one_row(folder: Path) -> Path:
    return write_jsonl(folder / "one.jsonl", pairs(1))


def readme_alone(folder: Path) -> Path:
    (folder / "project").mkdir()
    (folder / "project/README.md").write_text("# A project\n\nIt does much.\n")
    (folder / "project/main.py").write_text("print()\n")
    return folder / "project"


DOUBTFUL = {
    one_row: r"^one\.jsonl holds one row, .*set data\.accept_small_data",
    readme_alone: r"project holds no data but README\.md, .*set data\.accept_small_data",
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
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "diary.md").write_text("One.\n\nTwo.\n")
    check_meant(DataConfig(path=str(notes)))
    (notes / "readme.md").write_text("Read me.\n")
    check_meant(DataConfig(path=str(notes)))


class Terminal(io.StringIO):
    """Somebody sits there."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "is_trained"), [("y\n", True), ("\n", False), ("", False)])
def test_a_person_at_the_terminal_answers(
    answer: str, is_trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DeploymentConfig(data={"path": str(one_row(tmp_path))})
    trained: list[bool] = []

    def train_configured(
        given: DeploymentConfig, accept: Collection[str], show_line: object
    ) -> dict[str, Any]:
        check_meant(given.data)
        trained.append(given.data.accept_small_data)
        return {"status": "finished"}

    monkeypatch.setattr(one_call, "train_configured", train_configured)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stdout", Terminal())
    if is_trained:
        assert train.train(config) == 0
    else:
        with pytest.raises(UnconfirmedDataError):
            train.train(config)
    assert trained == [True] * is_trained
    assert "one.jsonl holds one row" in sys.stdout.getvalue()  # type: ignore[attr-defined]


def test_no_question_where_nobody_sits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DeploymentConfig(data={"path": str(one_row(tmp_path))})
    monkeypatch.setattr(one_call, "train_configured", lambda given, *_: check_meant(given.data))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UnconfirmedDataError):
        train.train(config)
