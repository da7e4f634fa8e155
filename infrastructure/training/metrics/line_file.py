"""A growing text file of whole lines: what a kill or a full disk tore is cut, never built upon.

Each line goes to the operating system at once, so a killed process loses at most the line it was
writing. It is not synced line by line: a power cut may take the last seconds.
"""

from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from infrastructure.core.files import atomic_write

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
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, "a+")
            self._file.truncate(end_of_last_line(self._file))
        return self._file


def end_of_last_line(file: FileIO) -> int:
    """The number of bytes up to and with the last line end."""
    end = file.seek(0, 2)
    while end > 0:
        start = max(0, end - SEARCH_BYTES)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
