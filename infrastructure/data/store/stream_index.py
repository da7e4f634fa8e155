"""An index of the beginnings of a stream's windows, so that reading can start at any window.

A window is a run of usable rows of one file that fits into the buffer, in rows and in bytes. Sizes
are estimated from the content by fixed rules, so windows are the same on every machine.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

FIELDS = ("file", "offset", "line", "first_row", "num_items", "num_bytes")
OBJECT_BYTES = 64


@dataclass(frozen=True)
class WindowIndex:
    """The windows of a dataset.

    Attributes:
        windows: int64 (number of windows, 6), with one column for each name in FIELDS.
        is_used: bool (number of rows read); bad and held-out rows are not used.
    """

    windows: Integers
    is_used: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.windows)

    def column(self, name: str) -> Integers:
        return self.windows[:, FIELDS.index(name)]

    @property
    def num_items(self) -> int:
        return int(self.column("num_items").sum())

    def find(self, item: int) -> tuple[int, int]:
        """Return the window that contains item number `item`, and the number of items before it in
        the window.
        """
        ends = np.cumsum(self.column("num_items"))
        window = int(np.searchsorted(ends, item, side="right"))
        before = int(ends[window - 1]) if window else 0
        return window, item - before

    def layout_hash(self) -> str:
        """Return a hash of the windows, which changes whenever a stream's order would change."""
        return hashlib.sha256(np.ascontiguousarray(self.column("num_items")).data).hexdigest()


class WindowIndexBuilder:
    """A builder of a `WindowIndex`, which groups the usable rows that it gets into windows."""

    def __init__(self, buffer_size: int, memory_bytes: int | None) -> None:
        self.buffer_size = buffer_size
        self.memory_bytes = memory_bytes
        self._windows: list[list[int]] = []
        self._is_used = bytearray()

    def add(self, file: int, offset: int, line: int, num_bytes: int, is_used: bool) -> None:
        """Add the next row of the files.

        Args:
            num_bytes: memory that the row takes while it is buffered.
        """
        if is_used:
            if self._needs_new_window(file, num_bytes):
                self._windows.append([file, offset, line, len(self._is_used), 0, 0])
            self._windows[-1][4] += 1
            self._windows[-1][5] += num_bytes
        self._is_used.append(is_used)

    def _needs_new_window(self, file: int, num_bytes: int) -> bool:
        if not self._windows or self._windows[-1][0] != file:
            return True
        _, _, _, _, rows, taken = self._windows[-1]
        too_much = self.memory_bytes is not None and taken + num_bytes > self.memory_bytes
        return rows >= self.buffer_size or too_much

    def finish(self) -> WindowIndex:
        """Return the index of all added rows."""
        windows = np.array(self._windows, dtype=np.int64).reshape(-1, len(FIELDS))
        return WindowIndex(windows, np.frombuffer(bytes(self._is_used), dtype=np.bool_))


def estimated_bytes(value: object) -> int:
    """Estimate the memory that a value takes, by rules that do not depend on the Python version."""
    if isinstance(value, str):
        return OBJECT_BYTES + len(value) * _character_bytes(value)
    if isinstance(value, bytes):
        return OBJECT_BYTES + len(value)
    if isinstance(value, dict):
        items = [part for pair in value.items() for part in pair]
        return 4 * OBJECT_BYTES + sum(map(estimated_bytes, items))
    if isinstance(value, list | tuple):
        return OBJECT_BYTES + sum(8 + estimated_bytes(item) for item in value)
    return OBJECT_BYTES


def _character_bytes(text: str) -> int:
    """Return how many bytes Python uses per character of a text: 1, 2 or 4."""
    if text.isascii():
        return 1
    widest = ord(max(text))
    return 1 if widest < 1 << 8 else 2 if widest < 1 << 16 else 4
