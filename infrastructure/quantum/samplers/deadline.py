"""When an answer must be there."""

import time
from collections.abc import Callable

from infrastructure.core.errors import InputError

Clock = Callable[[], float]


class Deadline:
    """A moment that a clock comes to; the time runs from when this is made.

    Args:
        seconds: from now on; None: never.
        clock: seconds of any beginning; measurements on a busy machine give the processor's time.
    """

    def __init__(self, seconds: float | None, clock: Clock = time.monotonic) -> None:
        if seconds is not None and not seconds >= 0:
            raise InputError("quantum.negative_time_limit", seconds=seconds)
        self.clock = clock
        self.started_at = clock()
        self.seconds = seconds

    @property
    def elapsed_seconds(self) -> float:
        return self.clock() - self.started_at

    @property
    def seconds_left(self) -> float:
        """Negative once it is over; infinity where there is no limit."""
        return float("inf") if self.seconds is None else self.seconds - self.elapsed_seconds

    @property
    def is_over(self) -> bool:
        return self.seconds_left <= 0
