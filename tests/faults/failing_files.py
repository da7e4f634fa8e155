"""A file system in memory in which the n-th operation fails, or lies."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infrastructure.backup.format.file_operations import Buffer
from tests.faults.memory_files import Files, MemoryFiles

CHANGING = ("write", "sync_file", "sync_directory", "rename", "remove", "make_directory")
READING = ("read", "size", "names")


class FailingFiles(MemoryFiles):
    """Counts operations; the one numbered `fail_at` raises, and all later ones if `stays`.

    A write that fails has written half of what it was given.
    """

    def __init__(
        self,
        files: Files | None = None,
        error: int | None = None,
        fail_at: int = -1,
        stays: bool = False,
    ) -> None:
        super().__init__(files)
        self.error, self.fail_at, self.stays = error, fail_at, stays
        self.count = 0

    def heal(self) -> None:
        """From now on nothing fails."""
        self.fail_at, self.stays = -1, False

    def _next_fails(self) -> bool:
        number, self.count = self.count, self.count + 1
        return number == self.fail_at or (self.stays and 0 <= self.fail_at <= number)

    def _failure(self, path: Path) -> OSError:
        assert self.error is not None
        return OSError(self.error, os.strerror(self.error), str(path))

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        if self._next_fails():
            data = b"".join(bytes(buffer) for buffer in buffers)
            self.files[path] = data[: len(data) // 2]
            raise self._failure(path)
        super().write(path, buffers)

    def read(self, path: Path) -> Iterator[bytes]:
        if self._next_fails():
            raise self._failure(path)
        yield from super().read(path)

    def read_into(self, path: Path, memory: memoryview) -> Iterator[int]:
        if self._next_fails():
            raise self._failure(path)
        yield from super().read_into(path, memory)


def _failing(name: str) -> Any:
    def method(self: FailingFiles, path: Path, *others: Any) -> Any:
        if self._next_fails():
            raise self._failure(path)
        return getattr(MemoryFiles, name)(self, path, *others)

    return method


for _name in (*CHANGING[1:], *READING[1:]):
    setattr(FailingFiles, _name, _failing(_name))


class LyingFiles(MemoryFiles):
    """The n-th write reports success and keeps nothing, or zeros, or one flipped bit."""

    def __init__(self, files: Files, lie_at: int, lie: str) -> None:
        super().__init__(files)
        self.lie_at, self.lie = lie_at, lie
        self.count = 0

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        number, self.count = self.count, self.count + 1
        data = b"".join(bytes(buffer) for buffer in buffers)
        if number == self.lie_at:
            data = {
                "nothing": b"",
                "zeros": bytes(len(data)),
                "one bit": bytes([data[0] ^ 1]) + data[1:],
            }[self.lie]
        super().write(path, [data])


ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.ENOTCONN, errno.EFBIG)
