"""A text file to which complete lines are appended; an incomplete last line is cut off.

Each line is passed to the operating system at once, so a killed process loses at most the line that
it was writing. The file is synced to the disk only when it is closed, so a power failure may lose
the last seconds of an open file.
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
    """A file to which lines are appended. It is opened on first use, which cuts off a partial last
    line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def append(self, line: bytes) -> None:
        """Write one line. `line` includes its line end.

        Raises:
            OSError: if the line could not be written. The next call cuts off the part that was
                written.
        """
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._open().write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # report the first error
                self.close()
            raise

    def read_lines(self) -> list[bytes]:
        """Return the complete lines, with their line ends."""
        self._open()
        return self.path.read_bytes().splitlines(keepends=True)

    def replace(self, lines: Iterable[bytes]) -> None:
        """Replace the contents with `lines`. If this fails, the contents stay unchanged."""
        self.close()
        with atomic_write(self.path) as file:
            file.writelines(lines)

    def close(self) -> None:
        """Sync the file to the disk and close it.

        Raises:
            OSError: if the disk fails. The file is closed anyway.
        """
        file, self._file = self._file, None
        if file is not None:
            try:
                os.fsync(file.fileno())
            except OSError as error:
                if error.errno != errno.EINVAL:  # a device or a pipe, which stores nothing
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
    """A line file that is rotated at a maximum size; `name.1.jsonl` is older than `name.jsonl`.

    Args:
        max_bytes: the maximum size of a file; a line that would exceed it begins a new file. keep:
            the number of older files to keep.
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
    """Return the path of the `number`-th older file of `path`."""
    return path.with_suffix(f".{number}{path.suffix}")


def rotated_files(path: Path) -> list[Path]:
    """Return `path` and its older files, as far as they exist, the oldest first."""
    older = [
        (int(match[1]), file)
        for file in path.parent.glob(f"{path.stem}.*{path.suffix}")
        if (match := re.fullmatch(rf"{re.escape(path.stem)}\.(\d+)", file.stem))
    ]
    files = [file for _, file in sorted(older, reverse=True)]
    return [*files, path] if path.exists() else files


def end_of_last_line(file: FileIO) -> int:
    """Return the position after the last line end in a file, in bytes."""
    end = file.seek(0, 2)
    while end > 0:
        start = max(0, end - SEARCH_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
