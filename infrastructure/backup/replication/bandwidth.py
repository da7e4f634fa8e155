"""A limit on the bytes per second that copying uses."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from infrastructure.backup.format.file_operations import Buffer
from infrastructure.core.errors import InputError

PIECE_BYTES = 1024**2
BURST_SECONDS = 1.0  # how much unused bandwidth may be used later


class Bandwidth:
    """A token bucket that limits the bytes per second.

    Args:
        bytes_per_second: the limit; None means no limit.
        clock, sleep: the time in seconds, and a function that waits.
    """

    def __init__(
        self,
        bytes_per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise InputError("backup.bandwidth_not_positive", bytes_per_second=bytes_per_second)
        self.bytes_per_second = bytes_per_second
        self._clock, self._sleep = clock, sleep
        self._saved_bytes = 0.0
        self._since = clock()

    def take(self, num_bytes: int) -> None:
        """Wait until `num_bytes` may be sent."""
        if self.bytes_per_second is None:
            return
        now = self._clock()
        burst = BURST_SECONDS * self.bytes_per_second
        earned = (now - self._since) * self.bytes_per_second
        self._saved_bytes = min(burst, self._saved_bytes + earned) - num_bytes
        self._since = now
        if self._saved_bytes < 0:
            self._sleep(-self._saved_bytes / self.bytes_per_second)


class Paced(Sequence[Buffer]):
    """Buffers that are read in small pieces, with a call of `before(size)` before each piece."""

    def __init__(self, buffers: Sequence[Buffer], before: Callable[[int], None]) -> None:
        self._buffers, self._before = buffers, before

    def __len__(self) -> int:
        return len(self._buffers)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        return self._buffers[index]

    def __iter__(self) -> Iterator[Buffer]:
        for buffer in self._buffers:
            view = memoryview(buffer)
            for start in range(0, len(view), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                self._before(len(piece))
                yield piece
