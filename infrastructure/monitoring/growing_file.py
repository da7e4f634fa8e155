"""Reads what was added to a file of JSON lines since the last look, however long the file is."""

import os
from io import FileIO
from pathlib import Path

from infrastructure.monitoring.metrics_file import Record, decode_record

MAX_READ_BYTES = 1 << 22


class GrowingFile:
    """The new records of a JSON lines file, look by look.

    A file that was replaced (a training that goes on from an earlier step cuts its metrics, a log
    is rotated) is read from its beginning; `num_starts` counts how often that happened.

    Attributes:
        num_unreadable: whole lines that are no JSON object; they are left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_starts = 0
        self.num_unreadable = 0
        self._file: FileIO | None = None
        self._rest = b""

    def read_new(self) -> list[Record]:
        """The records of the whole lines that were added; of a torn last line nothing yet.

        Raises:
            OSError: the file is there and cannot be read.
        """
        if not self._open():
            return []
        assert self._file is not None
        records: list[Record] = []
        while data := self._file.read(MAX_READ_BYTES):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                try:
                    records.append(decode_record(line))
                except ValueError:
                    self.num_unreadable += 1
        return records

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

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
