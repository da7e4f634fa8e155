"""The folder of the runs."""

from pathlib import Path

import pytest

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
