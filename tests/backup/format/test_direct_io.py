"""With and without direct I/O bytes are the same, and it is used where the system has it."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest

from infrastructure.backup.format import direct_io
from infrastructure.backup.format.direct_io import (
    BLOCK_BYTES,
    DIRECT,
    read_directly,
    set_direct,
    write_directly,
)
from infrastructure.backup.format.file_operations import FileOperations

SIZES = (0, 1, 4096, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 4097)
CHUNK_BYTES = 999_983  # no multiple of anything


def is_direct(file: FileIO) -> bool:
    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT)


class Watched(FileIO):
    """Notes how it is read and written, and takes at most so many bytes at a time.

    With `refuses`, it is a file of a system that allows direct transfers, and then does none.
    """

    transfers: list[tuple[bool, int]]
    refuses = False
    most_bytes = BLOCK_BYTES

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        return self._noted(super().write, data)

    def readinto(self, memory: memoryview) -> int:  # type: ignore[override]
        return self._noted(super().readinto, memory)

    def _noted(self, transfer: Callable[[memoryview], int], memory: memoryview) -> int:
        if is_direct(self) and self.refuses:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        count = transfer(memory[: self.most_bytes])
        self.transfers.append((is_direct(self), count))
        return count


class WatchedPath:
    """A path whose files are `Watched`."""

    def __init__(self, path: Path, kind: type[Watched]) -> None:
        self.path, self.kind = path, kind

    def open(self, mode: str, buffering: int) -> Watched:
        assert buffering == 0
        return self.kind(self.path, mode)


@pytest.fixture(params=["as it is", "no direct I/O", "refused", "little at a time"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """Files of systems that can do more or less."""
    if request.param == "no direct I/O":
        monkeypatch.setattr(direct_io, "DIRECT", 0)

    class Kind(Watched):
        transfers: list[tuple[bool, int]] = []  # noqa: RUF012 - of one test
        refuses = request.param == "refused"
        most_bytes = 10**6 if request.param == "little at a time" else BLOCK_BYTES

    return Kind


def chunks_of(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[begin : begin + CHUNK_BYTES] for begin in range(0, len(data), CHUNK_BYTES))


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_is_written_is_what_is_read(
    tmp_path: Path, kind: type[Watched], size_bytes: int
) -> None:
    data = os.urandom(size_bytes)
    with kind(tmp_path / "file", "xb") as file:
        write_directly(file, chunks_of(data))
    assert (tmp_path / "file").read_bytes() == data
    pieces = read_directly(WatchedPath(tmp_path / "file", kind))  # type: ignore[arg-type]
    assert b"".join(bytes(piece) for piece in pieces) == data


def test_whole_blocks_pass_the_cache_by_and_the_rest_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_be_direct(tmp_path):
        pytest.skip("this file system has no direct I/O")

    class Kind(Watched):
        transfers: list[tuple[bool, int]] = []  # noqa: RUF012 - of this test

    with Kind(tmp_path / "file", "xb") as file:
        write_directly(file, chunks_of(os.urandom(2 * BLOCK_BYTES + 4097)))
    assert Kind.transfers == [(True, BLOCK_BYTES), (True, BLOCK_BYTES), (False, 4097)]
    Kind.transfers.clear()
    for _ in read_directly(WatchedPath(tmp_path / "file", Kind)):  # type: ignore[arg-type]
        pass
    assert Kind.transfers[:3] == [(True, BLOCK_BYTES), (True, BLOCK_BYTES), (True, 4097)]


def test_an_error_of_the_disk_is_raised_and_nothing_else_is_tried(tmp_path: Path) -> None:
    class Broken(Watched):
        def write(self, data: memoryview) -> int:  # type: ignore[override]
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Broken(tmp_path / "file", "xb") as file, pytest.raises(OSError) as raised:
        write_directly(file, [memoryview(b"x")])
    assert raised.value.errno == errno.EIO


def test_a_write_that_fails_with_and_without_direct_io_raises(tmp_path: Path) -> None:
    class Broken(Watched):
        def write(self, data: memoryview) -> int:  # type: ignore[override]
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with Broken(tmp_path / "file", "xb") as file, pytest.raises(OSError) as raised:
        write_directly(file, chunks_of(bytes(BLOCK_BYTES)))
    assert raised.value.errno == errno.EINVAL


class MountFiles(FileOperations):
    is_direct = False


@pytest.mark.parametrize("operations", [FileOperations(), MountFiles()])
def test_a_file_system_writes_and_reads_back_as_it_can(
    tmp_path: Path, operations: FileOperations, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[bool] = []

    def noted(file: FileIO, wanted: bool) -> bool:
        requests.append(wanted)
        return set_direct(file, wanted)

    monkeypatch.setattr(direct_io, "set_direct", noted)
    data = os.urandom(BLOCK_BYTES + 17)
    operations.write(tmp_path / "file", [data[:5], data[5:]])
    assert b"".join(bytes(piece) for piece in operations.read_back(tmp_path / "file")) == data
    assert (True in requests) == operations.is_direct


def can_be_direct(folder: Path) -> bool:
    with (folder / "probe").open("wb", buffering=0) as file:
        return bool(DIRECT) and set_direct(file, True)
