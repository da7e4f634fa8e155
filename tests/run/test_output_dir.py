"""The folder of the runs."""

from pathlib import Path

import pytest

from infrastructure.run import output_dir
from infrastructure.run.output_dir import no_empty_folder_left, writable


def test_a_folder_is_made_and_what_can_be_none_is_reported(tmp_path: Path) -> None:
    assert writable(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError,
        match=r"output_dir_not_writable\(.*/file, .*output_dir_is_a_file",
    ):
        writable(tmp_path / "file")


def test_a_folder_in_which_nothing_came_to_lie_is_gone_again(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "runs"
    with no_empty_folder_left(folder):
        writable(folder)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_holds_something_or_was_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "runs"
    with no_empty_folder_left(folder):
        (writable(folder) / "run").touch()
    (tmp_path / "empty").mkdir()
    with no_empty_folder_left(tmp_path / "empty"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "made"]
    assert (folder / "run").exists()


def test_a_file_on_the_way_to_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"not_writable\(.*/file/runs, .*output_dir_is_a_file"):
        writable(tmp_path / "file" / "runs")


def test_a_folder_whose_name_is_no_utf8_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.output_dir_not_utf8"):
        writable(tmp_path / "a\udcff")
    assert [*tmp_path.iterdir()] == []


def test_a_disk_that_is_read_only_is_named_by_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(output_dir.tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"not_writable\(.*reason=Read-only file system\)"):
        writable(tmp_path)
