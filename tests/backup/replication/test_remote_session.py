"""The state of copied files: when each was seen, compared and found wrong, and how."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.format.manifest import COPIED_APART
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.remote_session import (
    SURELY_WRONG,
    RemoteSession,
    Seen,
    UploadedFile,
    seen_of,
)
from infrastructure.core.errors import StorageError
from tests.backup.memory_place import MemoryPlace, save
from tests.faults.drive_model import Clock

FILE = Path("run-1/objects/ab/abcd")
CONTENT = Content.of([b"hello"])


class AnswersPlace(MemoryPlace):
    """Confirms with `answer`, and lets `pass_time` run meanwhile."""

    answer: bool | Evidence | None = None
    pass_time: Callable[[], None] = staticmethod(lambda: None)

    def confirm(self, path: Path, content: Content) -> bool | Evidence:  # type: ignore[override]
        self.pass_time()
        own = super().confirm(path, content)
        return own if self.answer is None else self.answer


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def place(clock: Clock) -> AnswersPlace:
    place = AnswersPlace()
    place.write(FILE, [b"hello"])
    place.pass_time = lambda: clock.sleep(5.0)
    return place


@pytest.fixture
def link(place: AnswersPlace, clock: Clock) -> RemoteSession:
    return RemoteSession(place, "run-1", clock=clock)


def state(file: UploadedFile) -> tuple[object, ...]:
    return file.confirmed_at, file.present_at, file.looked_at, file.evidence


def test_a_session_names_its_run_and_reads_its_store(link: RemoteSession) -> None:
    assert (link.place.run, link.store.root, link.store.operations) == (
        "run-1",
        Path("run-1"),
        link.place,
    )
    assert (link.compresses, link.fresh_seconds, link.is_doubtful) == (False, 1800.0, False)


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [(True, Evidence.BACKEND), *((each, each) for each in Evidence)],
)
def test_a_confirmation_counts_from_its_beginning(
    answer: bool | Evidence, evidence: Evidence, link: RemoteSession, place: AnswersPlace
) -> None:
    place.answer, link.is_doubtful = answer, True
    file = UploadedFile(FILE, CONTENT, 990.0, problem="an earlier one")
    assert state(file)[:3] == (None, float("-inf"), float("-inf"))
    assert link.confirms(file)
    assert state(file) == (1000.0, 1000.0, 1000.0, evidence)
    assert (file.problem, link.is_doubtful) == (None, False)
    assert (link.num_done, link.num_confirmed) == (1, 1)


def test_not_yet_and_not_to_be_seen_prove_nothing(link: RemoteSession, place: AnswersPlace) -> None:
    link.is_doubtful = True
    file = UploadedFile(FILE, CONTENT, 990.0, 995.0, 996.0, evidence=Evidence.MOUNT)
    place.answer = False
    assert not link.confirms(file)
    assert state(file) == (995.0, 996.0, 1000.0, Evidence.MOUNT)
    place.files.remove(FILE)
    assert not link.confirms(file)
    assert state(file) == (995.0, 996.0, 1005.0, Evidence.MOUNT)
    assert (link.is_doubtful, link.num_done, link.num_confirmed) == (True, 0, 0)
    assert not link.num_wrong


def test_a_file_is_surely_wrong_after_several_times_in_a_row(
    link: RemoteSession, place: AnswersPlace
) -> None:
    file, other = UploadedFile(FILE, CONTENT, 990.0, 995.0, 996.0), Path("run-1/other")

    def check(num_times: int) -> list[bool]:
        found = []
        for _ in range(num_times):
            with pytest.raises(StorageError):
                link.confirms(file)
            found.append(link.is_surely_wrong(FILE))
        return found

    place.files.files[FILE] = b"hallo"
    assert check(SURELY_WRONG - 1) == [False] * 4
    assert state(file)[:2] == (None, 996.0)
    assert file.problem == f"{FILE} holds other bytes"
    place.files.files[FILE] = b"hello"
    assert link.confirms(file)
    place.files.files[FILE] = b"hallo"
    assert check(SURELY_WRONG) == [False] * 4 + [True]
    assert not link.is_surely_wrong(other)
    assert (link.num_done, link.num_confirmed) == (1, 1)


@pytest.mark.parametrize("age", [None, 0.0, 1799.9, 1800.0, 2000.0])
def test_an_object_stays_confirmed_for_half_an_hour(
    age: float | None, link: RemoteSession, clock: Clock
) -> None:
    at = None if age is None else clock.now - age
    link.sent["a"] = UploadedFile(FILE, CONTENT, 0.0, at, present_at=clock.now)
    assert link.is_confirmed("a") is (age is not None and age < 1800.0)
    assert not link.is_confirmed("b")


@pytest.mark.parametrize("evidence", Evidence)
@pytest.mark.parametrize("reads", [True, False])
def test_a_later_look_compares_bytes_where_that_is_cheap_or_wanted(
    evidence: Evidence, reads: bool, link: RemoteSession, place: AnswersPlace
) -> None:
    place.answer = evidence
    file = UploadedFile(FILE, CONTENT, 990.0, 995.0, 996.0, evidence=evidence)
    compares = reads or evidence in (Evidence.CHECKSUM, Evidence.MOUNT)
    assert link.still_has(file, reads=reads)
    assert state(file) == (1000.0 if compares else 995.0, 1000.0, 1000.0, evidence)
    assert (link.num_done, link.num_confirmed) == (0, 0), "this is no progress"


@pytest.mark.parametrize(
    ("held", "confirmed_at", "is_there"),
    [(b"hallo", 995.0, True), (b"hallo", None, None), (b"hell", 995.0, None), (None, 995.0, False)],
)
def test_without_reading_the_size_of_what_was_confirmed_has_to_do(
    held: bytes | None,
    confirmed_at: float | None,
    is_there: bool | None,
    link: RemoteSession,
    place: AnswersPlace,
) -> None:
    place.files.files.pop(FILE)
    if held is not None:
        place.files.files[FILE] = held
    file = UploadedFile(FILE, CONTENT, 990.0, confirmed_at, 996.0, evidence=Evidence.READ_BACK)
    if is_there is None:
        with pytest.raises(StorageError):
            link.still_has(file, reads=False)
        assert (file.confirmed_at, link.num_wrong) == (None, {FILE: 1})
        return
    assert link.still_has(file, reads=False) is is_there
    assert state(file) == (995.0, 1000.0 if is_there else 996.0, 1000.0, Evidence.READ_BACK)


def test_what_is_known_of_files_is_the_oldest_and_weakest_of_each() -> None:
    file = UploadedFile(FILE, CONTENT, 0.0, 5.0, 9.0, evidence=Evidence.READ_BACK)
    others = [
        replace(file, confirmed_at=7.0, present_at=8.0, evidence=Evidence.MOUNT),
        replace(file, confirmed_at=6.0, evidence=Evidence.CHECKSUM),
    ]
    assert seen_of([file, *others]) == Seen(8.0, 5.0, Evidence.MOUNT)
    assert seen_of([file]) == Seen(9.0, 5.0, Evidence.READ_BACK)
    assert seen_of([]) is None
    assert seen_of([file, None]) is None
    assert seen_of([file, replace(file, confirmed_at=None)]) is None


def test_the_files_of_a_version_are_its_manifest_and_the_objects_of_this_machine(
    link: RemoteSession, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    name = save(store, 1)
    plain = store.read(name)
    own, apart, known_apart = (pack.hash for pack in plain.packs)
    manifest = replace(plain, values={COPIED_APART: [apart, known_apart]})
    assert [*link.files_of(name, manifest)] == [None, None]
    files = [UploadedFile(FILE, CONTENT, float(number)) for number in range(3)]
    link.sent.update(zip([name, own, known_apart], files, strict=True))
    assert [*link.files_of(name, manifest)] == files
    assert [*link.files_of(name, plain)] == [*files[:2], None, files[2]]


def test_what_is_gone_already_counts_as_removed(link: RemoteSession, place: AnswersPlace) -> None:
    link.remove(FILE)
    link.remove(FILE)
    assert place.removed == [FILE]
