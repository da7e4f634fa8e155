"""Lines of a text file with their byte offsets.

Memory use is limited: the content of a line longer than MAX_LINE_BYTES is skipped, and its `data`
is None.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from infrastructure.data.readers.row_limits import MAX_ROW_BYTES

MAX_LINE_BYTES = MAX_ROW_BYTES
UTF8_MARK = b"\xef\xbb\xbf"


class Start(NamedTuple):
    """The position at which a reader begins: a byte offset or record number, and a line number."""

    offset: int = 0
    line: int = 1


BEGIN = Start()


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its line end, from byte `offset` up to `end`.

    `data` is None if the line was too long to be kept in memory.
    """

    data: bytes | None
    offset: int
    end: int
    number: int

    @property
    def is_blank(self) -> bool:
        return self.data is not None and not self.data.strip()


def read_lines(
    file: BinaryIO, start: Start = BEGIN, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[Line]:
    """Yield lines from `start` on; a byte order mark at the beginning of the file is removed."""
    offset, number = start
    file.seek(offset)
    while data := file.readline(max_line_bytes + 1):
        length = len(data)
        whole = length <= max_line_bytes
        while not whole and not data.endswith(b"\n"):
            data = file.readline(max_line_bytes)
            length += len(data)
            if not data:
                break
        end = offset + length
        data = data.removeprefix(UTF8_MARK) if offset == 0 else data
        yield Line(data if whole else None, offset, end, number)
        offset = end
        number += 1
