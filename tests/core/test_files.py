"""Files and directories are whole or not there."""

import hashlib
import json
from pathlib import Path

import pytest

from infrastructure.core.files import (
    atomic_write,
    file_sha256,
    whole_directory,
    write_json,
    write_text,
)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file.txt"
    write_text(path, "first")
    write_text(path, "second")
    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]


def write_half_of(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(b"half")
        raise OSError("disk full")


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "first")
    with pytest.raises(OSError, match="full"):
        write_half_of(path)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_json_that_is_not_strict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []
    write_json(tmp_path / "a.json", {"name": "ä"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"name": "ä"}


def test_the_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    content = b"x" * (3 << 20)
    (tmp_path / "file").write_bytes(content)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_directory_gets_its_name_when_all_is_there(tmp_path: Path) -> None:
    target = tmp_path / "final"
    for content in ("first", "second"):
        with whole_directory(target) as part:
            (part / "inner").mkdir()
            (part / "inner" / "file").write_text(content)
            assert part != target
    assert (target / "inner" / "file").read_text() == "second"
    assert list(tmp_path.iterdir()) == [target]


def interrupt_half_way(target: Path) -> None:
    with whole_directory(target) as part:
        (part / "file").write_text("half")
        raise KeyboardInterrupt


def test_a_directory_that_fails_leaves_the_older_one(tmp_path: Path) -> None:
    target = tmp_path / "final"
    with whole_directory(target) as part:
        (part / "file").write_text("first")
    with pytest.raises(KeyboardInterrupt):
        interrupt_half_way(target)
    assert (target / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]
