"""Locks between descriptions of open files, as between processes."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from infrastructure.core.lock import Lock, is_held, try_lock


def test_one_at_a_time(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    assert first.take(wait=False)
    assert not second.take(wait=False)
    first.release()
    assert second.take(wait=False)


def test_its_file_is_the_users_to_write_and_everybodys_to_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Lock(tmp_path / "lock")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o644


def test_readers_share_it(tmp_path: Path) -> None:
    first, second, third = (Lock(tmp_path / "lock") for _ in range(3))
    assert first.take(shared=True, wait=False)
    assert second.take(shared=True, wait=False)
    assert not third.take(wait=False)


def test_who_forgets_it_gives_it_back(tmp_path: Path) -> None:
    first = Lock(tmp_path / "lock")
    assert first.take(wait=False)
    del first
    assert Lock(tmp_path / "lock").take(wait=False)


@pytest.mark.parametrize(
    ("wait", "answer", "expected"),
    [(True, None, True), (False, None, False), (False, True, True), (True, False, False)],
)
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_where_there_are_no_locks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wait: bool,
    answer: bool | None,
    expected: bool,
    number: int,
) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(number, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert Lock(tmp_path / "lock").take(wait=wait, where_there_are_none=answer) is expected


def test_other_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output"):
        Lock(tmp_path / "lock").take()


def test_whether_somebody_holds_it_is_seen_without_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert is_held(path) is False
    assert not path.exists()
    lock = Lock(path)
    assert is_held(path) is False
    assert lock.take(wait=False)
    assert is_held(path) is True
    assert lock.take(shared=True, wait=False)
    assert is_held(path) is False  # who only looks is in nobody's way
    lock.release()
    assert is_held(path) is False
    assert is_held(tmp_path / "lock" / "below a file") is None


def test_where_there_are_no_locks_it_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    Lock(tmp_path / "lock").release()
    monkeypatch.setattr(fcntl, "flock", flock)
    assert is_held(tmp_path / "lock") is None


def test_a_lock_is_exclusive_and_waited_for_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[int] = []
    monkeypatch.setattr(fcntl, "flock", lambda _, kind: kinds.append(kind))
    lock = Lock(tmp_path / "lock")
    taken = [lock.take(), lock.take(shared=True), lock.take(shared=True, wait=False)]
    taken += [try_lock(lock.descriptor), try_lock(lock.descriptor, shared=True)]
    assert all(taken)
    shared = fcntl.LOCK_SH | fcntl.LOCK_NB
    assert kinds == [*(fcntl.LOCK_EX, fcntl.LOCK_SH, shared, fcntl.LOCK_EX | fcntl.LOCK_NB, shared)]
