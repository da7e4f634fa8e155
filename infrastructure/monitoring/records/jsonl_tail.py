"""Reads what was added to a file of JSON lines since the last look, however long the file is."""

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from infrastructure.core.line_file import rotated_files
from infrastructure.monitoring.drawing.metrics_file import Record, decode_record

MAX_READ_BYTES = 1 << 22


class GrowingFile:
    """The new records of a JSON lines file, look by look.

    A file that was replaced (a training that goes on from an earlier step cuts its metrics) is read
    from its beginning; `num_starts` counts how often that happened.

    Attributes:
        num_unreadable: whole lines that are no JSON object; they are left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_starts = 0
        self.num_unreadable = 0
        self._file: FileIO | None = None
        self._rest = b""

    def read_new(self) -> Iterator[Record]:
        """The records of the whole lines that were added; of a torn last line nothing yet. They are
        read while they are taken, so that a long file needs no memory.

        Raises:
            OSError: the file is there and cannot be read.
        """
        return self._read_on() if self._open() else iter(())

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_on(self) -> Iterator[Record]:
        """The whole lines that are not read yet, of the file that is open."""
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
        """Open the file that has the name now; the old one is held open until then, so that its
        inode cannot come back as another file's.
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
    """A log that is rotated: its older files count too, and a rotation loses no line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._is_first = True

    def read_new(self) -> Iterator[Record]:
        """The records that were added, in their order; at the first look those of all files.

        Raises:
            OSError: a file is there and cannot be read.
        """
        if self._is_first:
            self._is_first = False
            others = [GrowingFile(path) for path in rotated_files(self.path) if path != self.path]
            for older in others:
                yield from older.read_new()  # nothing where it was removed just now
                older.close()
        else:
            yield from self._read_on()  # what came before the file was put aside
        yield from super().read_new()
