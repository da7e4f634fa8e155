"""Incremental reading of JSON lines files: only the lines added since the last read."""

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from infrastructure.core.line_file import rotated_files
from infrastructure.monitoring.drawing.metrics_file import Record, decode_record

MAX_READ_BYTES = 1 << 22


class GrowingFile:
    """A JSON lines file that may grow while it is read. Each read returns only the new records.

    If the file was replaced, as when a run resumes from an earlier step and rewrites its metrics,
    it is read again from its beginning. `num_starts` counts how often this happened.

    Attributes:
        num_unreadable: the number of complete lines that are not JSON objects, which are left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_starts = 0
        self.num_unreadable = 0
        self._file: FileIO | None = None
        self._rest = b""

    def read_new(self) -> Iterator[Record]:
        """Yield the records of the complete lines that were added since the last read.

        The lines are read lazily, so a long file needs little memory.

        Raises:
            OSError: if the file exists but cannot be read.
        """
        return self._read_on() if self._open() else iter(())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_on(self) -> Iterator[Record]:
        """Yield the records of the complete lines of the open file that have not been read yet."""
        while self._file is not None and (data := self._file.read(MAX_READ_BYTES)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                try:
                    record = decode_record(line)
                except ValueError:
                    self.num_unreadable += 1
                    continue
                yield record

    def _open(self) -> bool:
        """Open the file if it is not open, or if it was replaced. Return whether a file is open
        now.

        The old file stays open until the new one is open, so that its inode cannot be reused.
        """
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return self._file is not None
        if self._file is not None:
            held = os.fstat(self._file.fileno())
            is_same = (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino)
            if is_same and now.st_size >= self._file.tell():
                return True
        self.close()
        self._file, self._rest = FileIO(self.path), b""
        self.num_starts += 1
        self.num_unreadable = 0
        return True


class GrowingLog(GrowingFile):
    """A rotated log that may grow while it is read. Rotation loses no lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._is_first = True

    def read_new(self) -> Iterator[Record]:
        """Yield the records that were added, in order. The first call also reads all older files.

        Raises:
            OSError: if a file exists but cannot be read.
        """
        if self._is_first:
            self._is_first = False
            others = [GrowingFile(path) for path in rotated_files(self.path) if path != self.path]
            for older in others:
                yield from older.read_new()  # nothing if it was just removed
                older.close()
        else:
            yield from self._read_on()  # what was added before the rotation
        yield from super().read_new()
