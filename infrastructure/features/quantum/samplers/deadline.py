"""A time limit for a sampler's answer."""

import time
from collections.abc import Callable

from infrastructure.core.errors import InputError

Clock = Callable[[], float]


class Deadline:
    """A time limit that starts when the object is created.

    Args:
        seconds: time until the deadline; None: no limit.
        clock: returns seconds from any origin. Benchmarks on a busy machine pass the processor
            time.
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
        """The seconds left: negative after the deadline, infinity without a limit."""
        return float("inf") if self.seconds is None else self.seconds - self.elapsed_seconds

    @property
    def is_over(self) -> bool:
        return self.seconds_left <= 0
