"""Looks at what was confirmed: whose turn it is, how often, and what comes of it."""

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.replication.remote_session import RemoteSession, UploadedFile, seen_of
from infrastructure.backup.replication.second_looks import (
    LAST_SECONDS,
    LOOK_AGAIN_SECONDS,
    MISSING_SECONDS,
    MOST_LOOKS_PER_HOUR,
    READING_SHARE,
    UNSEEN_SECONDS,
    SecondLooks,
)
from tests.backup.memory_place import MemoryPlace
from tests.faults.drive_model import Clock


class Looked:
    """Files at a place, confirmed one second after the other, and how each look went."""

    def __init__(self, num_files: int, evidence: Evidence | None = None, seconds: float = 0.0):
        self.clock, self.place = Clock(1000.0), MemoryPlace()
        self.place.is_safe = lambda path: True
        self.link = RemoteSession(self.place, "run", clock=self.clock)
        self.evidence, self.seconds = evidence, seconds
        self.questions: list[tuple[float, str, Path]] = []
        self.files = [self._file(number) for number in range(num_files)]
        self.place.fault = self._fault
        self.looks = SecondLooks(self.link)

    def _file(self, number: int) -> UploadedFile:
        path, data = Path(f"run/{number}"), bytes([number % 251]) * (number + 3)
        self.place.write(path, [data])
        file = UploadedFile(path, Content.of([data]), self.clock.now)
        self.clock.now += 1.0
        assert self.link.confirms(file)
        file.evidence = self.evidence or file.evidence
        return file

    def _fault(self, operation: str, path: Path) -> None:
        if path.name.isdigit() and operation in ("confirm", "size"):
            self.questions.append((self.clock.now, operation, path))
            self.clock.now += self.seconds if operation == "confirm" else 0.0

    def watch(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.looks.one(self.files)
            self.clock.now += 1.0

    def last(self) -> Iterator[float]:
        for wait in self.looks.last(self.files):
            self.clock.now += wait
            yield wait


def test_each_file_has_its_turn_in_its_time_and_the_oldest_first() -> None:
    looked = Looked(3)
    looked.watch(2 * LOOK_AGAIN_SECONDS + 60)
    assert [path.name for _, _, path in looked.questions] == ["0", "1", "2"] * 2
    first, again = looked.questions[0][0], looked.questions[3][0]
    assert again - first >= LOOK_AGAIN_SECONDS


def test_many_files_are_looked_at_no_more_often_than_the_bound() -> None:
    looked = Looked(400)
    looked.watch(2 * 3600)
    assert MOST_LOOKS_PER_HOUR * 1.5 < len(looked.questions) <= 2 * MOST_LOOKS_PER_HOUR
    assert len({path for _, _, path in looked.questions}) == 400


def test_files_that_are_due_together_are_not_looked_at_in_a_burst() -> None:
    looked = Looked(20)  # due within 20 seconds
    looked.watch(LOOK_AGAIN_SECONDS + 90)
    times = [at for at, _, _ in looked.questions]
    assert len(times) == 20
    assert min(b - a for a, b in itertools.pairwise(times)) >= 3600 / MOST_LOOKS_PER_HOUR


def test_reading_back_takes_a_small_share_of_the_time_and_a_slow_place_is_not_read_back() -> None:
    looked = Looked(60, seconds=2.0)
    looked.watch(3600)
    reads = [at for at, operation, _ in looked.questions if operation == "confirm"]
    assert len(reads) == len(looked.questions)
    assert min(b - a for a, b in itertools.pairwise(reads)) >= 2.0 / READING_SHARE
    slow = Looked(3, Evidence.READ_BACK)
    slow.place.is_slow = True
    compared = [file.confirmed_at for file in slow.files]
    slow.watch(LOOK_AGAIN_SECONDS + 60)
    assert {operation for _, operation, _ in slow.questions} == {"size"}
    assert [file.confirmed_at for file in slow.files] == compared
    assert all(file.present_at > 1000 + LOOK_AGAIN_SECONDS for file in slow.files)
    for evidence in (Evidence.CHECKSUM, Evidence.MOUNT):  # these cost one question
        cheap = Looked(3, evidence)
        cheap.place.is_slow = True
        cheap.watch(LOOK_AGAIN_SECONDS + 60)
        assert {operation for _, operation, _ in cheap.questions} == {"confirm"}


def test_a_size_that_differs_is_compared_and_found_wrong() -> None:
    looked = Looked(3, Evidence.READ_BACK)
    looked.place.is_slow = True
    looked.place.files.files[Path("run/1")] += b"?"
    looked.watch(LOOK_AGAIN_SECONDS + 60)
    assert [file.confirmed_at is None for file in looked.files] == [False, True, False]
    assert "other bytes" in str(looked.files[1].problem)
    assert seen_of(looked.files) is None


def test_what_is_not_to_be_seen_is_looked_for_again_and_in_the_end_missing() -> None:
    looked = Looked(2, Evidence.MOUNT)

    def hidden(operation: str, path: Path) -> None:
        looked._fault(operation, path)
        if path.name == "0":
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))

    looked.place.fault = hidden
    looked.watch(LOOK_AGAIN_SECONDS + 10)
    assert looked.files[0].confirmed_at is not None, "on a mount once is no proof"
    looked.watch(UNSEEN_SECONDS + 10)
    assert looked.files[0].confirmed_at is None, "it was not seen for longer than that"
    assert looked.clock.now - looked.files[0].present_at > MISSING_SECONDS
    values = "url=memory:here, path=run/0"
    assert looked.files[0].problem == f"backup.uploaded_file_disappeared({values})"
    looked.place.fault = looked._fault
    looked.watch(UNSEEN_SECONDS + 10)
    assert looked.files[0].confirmed_at is not None
    assert looked.files[0].problem is None


def test_an_error_of_the_place_is_raised_and_proves_nothing() -> None:
    looked = Looked(1)

    def away(operation: str, path: Path) -> None:
        raise OSError(errno.ENOTCONN, "not connected")

    looked.place.fault = away
    looked.clock.now += LOOK_AGAIN_SECONDS
    with pytest.raises(OSError, match="not connected"):
        looked.looks.one(looked.files)
    assert looked.files[0].confirmed_at is not None


def test_the_last_look_reads_back_for_a_bounded_time_what_was_compared_longest_ago_first() -> None:
    looked = Looked(100, Evidence.READ_BACK, seconds=2.0)
    looked.files.reverse()
    assert len([*looked.last()]) == 100
    how = [operation for _, operation, _ in looked.questions]
    assert how == ["confirm"] * int(LAST_SECONDS / 2) + ["size"] * (100 - int(LAST_SECONDS / 2))
    assert [path.name for _, _, path in looked.questions[:3]] == ["0", "1", "2"]
    looked.questions.clear()
    looked.clock.now += looked.link.fresh_seconds + 1  # all of it was compared too long ago
    assert len([*looked.last()]) == 100
    assert {operation for _, operation, _ in looked.questions} == {"confirm"}


def test_the_last_look_waits_a_little_for_what_is_not_to_be_seen() -> None:
    looked = Looked(3, Evidence.MOUNT)
    looked.clock.now += 1.0
    hidden_until = looked.clock.now + 3.0

    def hidden(operation: str, path: Path) -> None:
        looked._fault(operation, path)
        if path.name == "2" or (path.name == "1" and looked.clock.now < hidden_until):
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))

    looked.place.fault = hidden
    assert sum(looked.last()) < 30
    assert [file.confirmed_at is None for file in looked.files] == [False, False, True]
    names = [path.name for _, _, path in looked.questions]
    assert (names.count("0"), names.count("1")) == (1, 4)
