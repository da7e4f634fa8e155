"""The file-system operations of a store, in a class that tests replace to inject faults."""

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TypeVar

from infrastructure.backup.format.direct_io import read_directly, write_all, write_directly
from infrastructure.core.files import make_directory
from infrastructure.core.lock import try_lock

Buffer = bytes | bytearray | memoryview
Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK_BYTES = 2 * 1024**2  # fits into a CPU cache, so the hash reads from there
NUM_THREADS = 2  # a single thread spends more time on fresh memory than on hashing
PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700


class FileOperations:
    """A local POSIX file system. Every method raises the system's OSError.

    Attributes:
        is_direct: whether writes and `read_back` bypass the page cache, if the system supports it.
    """

    is_direct = True

    def read(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes of a file in pieces."""
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def read_into(self, path: Path, memory: memoryview) -> Iterator[int]:
        """Fill `memory` from the beginning of a file. Yield the number of bytes filled so far."""
        end = 0
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(memory[end : end + CHUNK_BYTES]):
                end += count
                yield end

    def read_back(self, path: Path) -> Iterator[Buffer]:
        """Yield the bytes of a file, from the disk instead of the cache if the system supports
        this.

        Each piece becomes invalid when the next is yielded.
        """
        self.forget_cached(path)
        return read_directly(path) if self.is_direct else self.read(path)

    def open(self, path: Path) -> BinaryIO:
        """Open a file for reading. Its bytes stay readable even if the file is removed."""
        return path.open("rb", buffering=0)

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in directory.iterdir())

    def free_bytes(self, directory: Path) -> int | None:
        """Return the free space in bytes; None if it is unknown."""
        return shutil.disk_usage(directory).free

    def make_directory(self, directory: Path) -> None:
        make_directory(directory, PRIVATE_DIRECTORY)

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        """Write a new file. Raise FileExistsError if it exists."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        try_lock(descriptor)  # marks it as being written; not required
        with FileIO(descriptor, "wb") as file:
            if self.is_direct:
                write_directly(file, _chunks(buffers))
                return
            for chunk in _chunks(buffers):
                write_all(file, chunk)

    def sync_file(self, path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Make `target` a hard link to `source`. Raise FileExistsError if it exists."""
        target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        path.unlink()

    def truncate(self, path: Path) -> None:
        """Make a file empty."""
        os.truncate(path, 0)

    def forget_cached(self, path: Path) -> None:
        """Drop a file from the page cache, so that the next read comes from the disk; if
        unsupported, do nothing.
        """
        with contextlib.suppress(OSError, AttributeError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def by_two(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order. Two threads compute up to two results in
    advance.
    """
    running: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        for item in items:
            if len(running) == NUM_THREADS:
                yield running.popleft().result()
            running.append(threads.submit(work, item))
        while running:
            yield running.popleft().result()


def _chunks(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    return (memoryview(buffer).cast("B") for buffer in buffers if len(buffer))
