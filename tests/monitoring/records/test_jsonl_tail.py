"""A file of JSON lines is read as it grows, is cut, and is replaced."""

import json
from pathlib import Path

import pytest

from infrastructure.core.files import write_text
from infrastructure.core.line_file import RotatingLineFile
from infrastructure.monitoring.records.jsonl_tail import GrowingFile, GrowingLog


def lines(first: int, last: int) -> str:
    return "".join(json.dumps({"step": step}) + "\n" for step in range(first, last + 1))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def steps(file: GrowingFile) -> list[int]:
    return [record["step"] for record in file.read_new()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_each_look_gives_what_is_new(path: Path) -> None:
    file = GrowingFile(path)
    assert steps(file) == []
    append(path, lines(1, 3))
    assert steps(file) == [1, 2, 3]
    assert steps(file) == []
    append(path, lines(4, 4))
    assert steps(file) == [4]
    file.close()


def test_a_torn_last_line_is_given_when_it_is_whole(path: Path) -> None:
    file = GrowingFile(path)
    append(path, '{"step": 1}\n{"st')
    assert steps(file) == [1]
    append(path, 'ep": 2}\n')
    assert steps(file) == [2]
    assert file.num_unreadable == 0
    file.close()


def test_a_file_that_was_replaced_by_a_longer_one_is_read_anew(path: Path) -> None:
    file = GrowingFile(path)
    append(path, lines(1, 3))
    assert steps(file) == [1, 2, 3]
    write_text(path, lines(1, 2) + lines(7, 9))  # atomically, as a resumed training does
    assert steps(file) == [1, 2, 7, 8, 9]
    assert file.num_starts == 2
    file.close()


def test_a_file_that_was_cut_in_place_is_read_anew(path: Path) -> None:
    file = GrowingFile(path)
    append(path, lines(1, 3))
    assert steps(file) == [1, 2, 3]
    path.write_text(lines(1, 1))
    assert steps(file) == [1]
    file.close()


def test_damaged_lines_are_counted(path: Path) -> None:
    file = GrowingFile(path)
    append(path, '{"step": 1}\n???\n[2]\n' + lines(3, 3))
    assert steps(file) == [1, 3]
    assert file.num_unreadable == 2
    append(path, '{"st')
    assert steps(file) == []
    write_text(path, lines(7, 7))  # what was known of the old file does not count
    assert (steps(file), file.num_unreadable) == ([7], 0)
    file.close()


def test_a_file_that_has_gone_gives_nothing_more(path: Path) -> None:
    file = GrowingFile(path)
    append(path, lines(1, 1))
    assert steps(file) == [1]
    path.unlink()
    assert steps(file) == []
    append(path, lines(5, 5))
    assert steps(file) == [5]
    file.close()


def test_a_log_that_is_rotated_loses_no_line_and_gives_none_twice(tmp_path: Path) -> None:
    log = RotatingLineFile(tmp_path / "system.jsonl", max_bytes=200)

    def write(first: int, last: int) -> None:
        for step in range(first, last + 1):
            log.append(b'{"step": %d}\n' % step)

    write(1, 40)
    follower = GrowingLog(tmp_path / "system.jsonl")
    seen = steps(follower)
    for first in range(41, 100, 7):
        write(first, first + 6)
        seen += steps(follower)
    assert seen == list(range(1, 104))
    follower.close()
    log.close()
