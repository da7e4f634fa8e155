"""The few operations of a store on a real file system."""

import contextlib
import errno
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from infrastructure.backup.format.file_operations import CHUNK_BYTES, FileOperations, by_two

PAGES = b"x" * (1 << 20)


def cached_bytes(path: Path) -> int:
    """How many bytes from the beginning can be read without asking the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(4096)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return 0
    finally:
        os.close(descriptor)


@pytest.fixture
def cached_file(tmp_path: Path) -> Path:
    """A file on the disk that lies in memory too, on a file system that can forget it."""
    path = tmp_path / "file"
    try:
        for attempt in range(2):
            FileOperations().write(path, [PAGES])
            FileOperations().sync_file(path)
            if attempt == 0:
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if cached_bytes(path):
                    pytest.skip("this file system keeps everything in memory")
                path.unlink()
    except (OSError, AttributeError) as error:
        pytest.skip(f"nobody tells what lies in memory here: {error}")
    assert path.read_bytes() == PAGES
    return path


def test_what_is_forgotten_is_read_from_the_disk(cached_file: Path) -> None:
    assert cached_bytes(cached_file) > 0
    deadline = time.monotonic() + 60
    while cached_bytes(cached_file) and time.monotonic() < deadline:  # who reads it holds a page
        FileOperations().forget_cached(cached_file)
    assert cached_bytes(cached_file) == 0


def test_all_of_a_file_is_to_be_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody tells what lies in memory, what the system is asked for counts."""
    advice: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *words: advice.append(words))
    (tmp_path / "file").write_bytes(PAGES)
    FileOperations().forget_cached(tmp_path / "file")
    assert advice == [(0, 0, os.POSIX_FADV_DONTNEED)]  # a length of 0 is up to its end


def test_where_nothing_can_be_forgotten_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileOperations().forget_cached(tmp_path / "none")
    monkeypatch.delattr(os, "posix_fadvise")
    (tmp_path / "file").write_bytes(b"x")
    FileOperations().forget_cached(tmp_path / "file")


def test_a_file_is_written_once_and_by_nobody_else_read(tmp_path: Path) -> None:
    operations, path = FileOperations(), tmp_path / "a" / "b" / "file"
    operations.make_directory(path.parent)
    operations.make_directory(path.parent)
    operations.write(path, [b"one", b"", bytearray(b"two"), memoryview(b"three")])
    assert path.read_bytes() == b"onetwothree"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        operations.write(path, [b"another"])
    assert path.read_bytes() == b"onetwothree"
    operations.truncate(path)
    assert operations.size(path) == 0


def test_a_file_is_read_piece_by_piece_and_into_memory(tmp_path: Path) -> None:
    data = os.urandom(CHUNK_BYTES + 17)
    (tmp_path / "file").write_bytes(data)
    pieces = list(FileOperations().read(tmp_path / "file"))
    assert [len(piece) for piece in pieces] == [CHUNK_BYTES, 17]
    assert b"".join(pieces) == data
    memory = bytearray(len(data))
    ends = list(FileOperations().read_into(tmp_path / "file", memoryview(memory)))
    assert ends == [CHUNK_BYTES, len(data)]
    assert memory == data


def test_names_come_in_their_order(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        (tmp_path / name).touch()
    assert FileOperations().names(tmp_path) == ["a", "b", "c"]


def test_what_is_synced_is_the_file_and_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    (tmp_path / "file").touch()
    FileOperations().sync_file(tmp_path / "file")
    FileOperations().sync_directory(tmp_path)
    assert synced == [(tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino]


def test_a_directory_that_cannot_be_synced_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def refuse(descriptor: int) -> None:
        opened.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="output error"):
        FileOperations().sync_directory(tmp_path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_two_work_at_a_time_and_results_keep_their_order() -> None:
    lock, running, most, first_two = threading.Lock(), [0], [0], threading.Barrier(2)

    def work(number: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        if number < 2:
            first_two.wait(60)
        time.sleep(0.02 if number % 2 else 0.05)
        with lock:
            running[0] -= 1
        return number * 10

    taken: list[int] = []

    def numbers() -> object:
        for number in range(6):
            taken.append(number)
            yield number

    results = by_two(work, numbers())  # type: ignore[arg-type]
    with contextlib.closing(results):  # type: ignore[type-var]
        assert next(results) == 0
        assert len(taken) <= 3  # no more than two are begun beyond what was taken
        assert list(results) == [10, 20, 30, 40, 50]
    assert most[0] == 2
