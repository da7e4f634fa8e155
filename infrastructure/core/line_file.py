"""A growing text file of whole lines: what a kill or a full disk tore is cut, never built upon.

Each line goes to the operating system at once, so a killed process loses at most the line it was
writing. It is not synced line by line, only when it is closed: a power cut may take the last
seconds of a file that is being written, and nothing of one that was closed.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from infrastructure.core.files import atomic_write, make_directory, sync_directory

SEARCH_BYTES = 1 << 16


class LineFile:
    """Appends lines to `path`; opens it at the first use and cuts a torn last line then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def append(self, line: bytes) -> None:
        """Write one line, given with its line end.

        Raises:
            OSError: it could not be written; the next call cuts what was left half-way.
        """
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._open().write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                self.close()
            raise

    def read_lines(self) -> list[bytes]:
        """The whole lines, with their line ends."""
        self._open()
        return self.path.read_bytes().splitlines(keepends=True)

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put `lines` in place of everything; on failure the file stays as it was."""
        self.close()
        with atomic_write(self.path) as file:
            file.writelines(lines)

    def close(self) -> None:
        """Close the file, all of it on the disk.

        Raises:
            OSError: the disk refuses; the file is closed all the same.
        """
        file, self._file = self._file, None
        if file is not None:
            try:
                os.fsync(file.fileno())
            except OSError as error:
                if error.errno != errno.EINVAL:  # a device or a pipe, which nothing is kept in
                    raise
            finally:
                file.close()

    def _open(self) -> FileIO:
        if self._file is None:
            make_directory(self.path.parent)
            is_new = not self.path.exists()
            self._file = FileIO(self.path, "a+")
            self._file.truncate(end_of_last_line(self._file))
            if is_new:
                sync_directory(self.path.parent)
        return self._file


class RotatingLineFile(LineFile):
    """A line file of bounded size: `name.jsonl` is the newest, `name.1.jsonl` the one before.

    Args:
        max_bytes: a line that would make the file larger begins a new one.
        keep: older files that are kept; the oldest is removed.
    """

    def __init__(self, path: Path, max_bytes: int = 1 << 20, keep: int = 9) -> None:
        super().__init__(path)
        self.max_bytes, self.keep = max_bytes, keep
        self._size: int | None = None

    def append(self, line: bytes) -> None:
        if self._size is None:
            self._size = self._open().seek(0, 2)
        if self._size and self._size + len(line) > self.max_bytes:
            self._rotate()
        super().append(line)
        self._size += len(line)

    def _rotate(self) -> None:
        self.close()
        for number in range(self.keep - 1, 0, -1):
            older = rotated(self.path, number)
            if older.exists():
                older.replace(rotated(self.path, number + 1))
        self.path.replace(rotated(self.path, 1))
        self._size = 0


def rotated(path: Path, number: int) -> Path:
    """The name of the `number`-th older file of `path`."""
    return path.with_suffix(f".{number}{path.suffix}")


def rotated_files(path: Path) -> list[Path]:
    """`path` and its older files that are there, oldest first."""
    older = [
        (int(match[1]), file)
        for file in path.parent.glob(f"{path.stem}.*{path.suffix}")
        if (match := re.fullmatch(rf"{re.escape(path.stem)}\.(\d+)", file.stem))
    ]
    files = [file for _, file in sorted(older, reverse=True)]
    return [*files, path] if path.exists() else files


def end_of_last_line(file: FileIO) -> int:
    """The number of bytes up to and with the last line end."""
    end = file.seek(0, 2)
    while end > 0:
        start = max(0, end - SEARCH_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
