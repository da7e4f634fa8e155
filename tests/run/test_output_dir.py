"""The folder of the runs."""

from pathlib import Path

import pytest

from infrastructure.run.output_dir import writable


def test_a_folder_is_made_and_what_can_be_none_is_reported(tmp_path: Path) -> None:
    assert writable(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file cannot be written to .*; choose another"):
        writable(tmp_path / "file")
