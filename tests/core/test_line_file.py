import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

from infrastructure.core import line_file
from infrastructure.core.line_file import LineFile, RotatingLineFile, rotated_files


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """The kernel writes up to this size and refuses the rest, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    lines = LineFile(tmp_path / "folder" / "lines")
    lines.append(b"one\n")
    assert lines.path.read_bytes() == b"one\n"
    lines.append(b"two\n")
    assert lines.path.read_bytes() == b"one\ntwo\n"
    lines.close()


@pytest.mark.parametrize("torn", [b"tor", b"t" * 200_000])
def test_a_torn_last_line_is_cut_on_opening(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n" + torn)
    lines = LineFile(path)
    assert lines.read_lines() == [b"one\n"]
    lines.append(b"two\n")
    lines.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_file_that_is_one_torn_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"tor")
    lines = LineFile(path)
    lines.append(b"one\n")
    lines.close()
    assert path.read_bytes() == b"one\n"


def test_what_a_full_disk_tore_is_cut_before_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = LineFile(path)
    lines.append(b"first\n")
    with largest_file(10), pytest.raises(OSError, match="File too large"):
        lines.append(b"second line\n")
    assert path.read_bytes() == b"first\nseco"
    lines.append(b"third\n")
    lines.close()
    assert path.read_bytes() == b"first\nthird\n"


def test_replacing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = LineFile(path)
    lines.append(b"one\n")
    with largest_file(5), pytest.raises(OSError, match="File too large"):
        lines.replace([b"much too long\n"])
    assert path.read_bytes() == b"one\n"
    lines.replace([b"new\n"])
    lines.append(b"more\n")
    lines.close()
    assert path.read_bytes() == b"new\nmore\n"
    assert list(tmp_path.iterdir()) == [path]


def lines_of(path: Path) -> list[str]:
    return [line for file in rotated_files(path) for line in file.read_text().splitlines()]


def test_a_rotating_file_keeps_the_newest_lines_in_bounded_files(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "system.jsonl"
    file = RotatingLineFile(path, max_bytes=30, keep=2)
    for number in range(12):
        file.append(b"line %04d\n" % number)
    file.close()
    assert rotated_files(path) == [
        path.with_name("system.2.jsonl"),
        path.with_name("system.1.jsonl"),
        path,
    ]
    assert all(part.stat().st_size <= 30 for part in rotated_files(path))
    assert lines_of(path) == [f"line {number:04d}" for number in range(3, 12)]


def test_a_new_process_goes_on_where_the_file_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\nto")  # a kill tore the last line
    file = RotatingLineFile(path, max_bytes=10, keep=1)
    file.append(b"three\n")
    file.close()
    assert lines_of(path) == ["one", "two", "three"]
    assert path.read_text() == "three\n"


def test_files_of_another_name_are_not_taken_for_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for name in ("a.jsonl", "a.1.jsonl", "a.x.jsonl", "ab.jsonl"):
        (tmp_path / name).write_text("")
    assert [file.name for file in rotated_files(path)] == ["a.1.jsonl", "a.jsonl"]
    assert rotated_files(tmp_path / "none.jsonl") == []


def test_what_is_closed_is_on_the_disk_and_so_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    lines = LineFile(tmp_path / "lines")
    lines.append(b"one\n")
    assert synced == [tmp_path.name]
    lines.append(b"two\n")
    lines.close()
    lines.append(b"three\n")  # it is there already
    lines.close()
    assert synced == [tmp_path.name, "lines", "lines"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_disk_that_refuses_at_the_end_is_reported_and_the_file_closed(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device or a pipe cannot be synced, and nothing is kept in it."""
    lines = LineFile(tmp_path / "lines")
    lines.append(b"one\n")
    file = lines._file
    assert file is not None

    def fsync(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            lines.close()
    else:
        lines.close()
    assert file.closed


def test_older_files_move_up_in_order(tmp_path: Path) -> None:
    file = RotatingLineFile(path := tmp_path / "a.jsonl", max_bytes=4, keep=3)
    for letter in "abcdef":
        file.append(f"{letter * 3}\n".encode())
    file.close()
    assert [part.name for part in rotated_files(path)] == [
        *("a.3.jsonl", "a.2.jsonl", "a.1.jsonl", "a.jsonl")
    ]
    assert lines_of(path) == ["ccc", "ddd", "eee", "fff"]


def test_a_line_that_is_too_long_for_any_file_leaves_no_empty_one(tmp_path: Path) -> None:
    file = RotatingLineFile(path := tmp_path / "a.jsonl", max_bytes=4, keep=3)
    file.append(b"much too long\n")
    assert rotated_files(path) == [path]
    file.append(b"b\n")
    file.close()
    assert lines_of(path) == ["much too long", "b"]


def test_what_a_full_disk_tore_does_not_count_for_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RotatingLineFile(path := tmp_path / "a.jsonl", max_bytes=30, keep=1)
    file.append(b"one\n")
    with largest_file(10), pytest.raises(OSError, match="File too large"):
        file.append(b"a second line\n")
    looked: list[int] = []
    real = line_file.end_of_last_line

    def look(opened: FileIO) -> int:
        looked.append(real(opened))
        return looked[-1]

    monkeypatch.setattr(line_file, "end_of_last_line", look)
    file.append(b"third\n")
    assert (looked, file._size) == ([4], len(b"one\nthird\n"))
    file.close()
    assert path.read_bytes() == b"one\nthird\n"
