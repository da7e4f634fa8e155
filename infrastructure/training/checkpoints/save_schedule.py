"""A schedule of additional checkpoints: at time intervals, on request, and before a deadline."""

import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.training.core.state import StopReason

# Preemptible runtimes live for hours, and the interval depends only on the square root of this.
MEAN_SECONDS_BETWEEN_FAILURES = 3 * 3600.0
SHORTEST_SECONDS, LONGEST_SECONDS = 10.0, 1800.0
REQUEST_FILE = "save_now"
# The share of the time to the deadline, at most half a minute, kept for work after the last save.
DEADLINE_SHARE, DEADLINE_SECONDS = 0.02, 30.0
NUM_REMEMBERED = 50


class SaveSchedule:
    """A schedule that decides when a checkpoint is due.

    With `auto`, the interval is Young's √(2·cost·mean time between failures), with the measured
    cost of a save: J. W. Young, "A first order approximation to the optimum checkpoint interval",
    CACM 17(9), 1974.

    Args:
        interval_seconds: time between two saves. None: no saves by time.
        deadline_seconds: time from now until the training must have ended. None: no deadline.
        request: a file whose appearance requests a checkpoint. It is removed after the save.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        interval_seconds: float | Literal["auto"] | None = None,
        deadline_seconds: float | None = None,
        request: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.deadline_seconds = deadline_seconds
        self.request = request
        self.clock = clock
        # returns the seconds needed after the last save, such as for copying it
        self.reserve: Callable[[], float] = lambda: 0.0
        self._began = self._last_save = self._last_check = clock()
        self._saved_step: int | None = None
        self._costs: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._gaps: deque[float] = deque(maxlen=NUM_REMEMBERED)

    def start(self, step: int) -> None:
        """Restart the clock when a run resumes from the checkpoint of `step`."""
        self._last_save = self._last_check = self.clock()
        self._saved_step = step

    def kind_due(self, step: int) -> SaveKind | None:
        """Return the kind of checkpoint that is due after `step`, or None if none is due."""
        now = self.clock()
        self._gaps.append(now - self._last_check)
        self._last_check = now
        if self.request is not None and self.request.exists():
            return SaveKind.MANUAL
        interval = self.current_interval_seconds
        is_new = step != self._saved_step
        return SaveKind.SCHEDULED if is_new and now - self._last_save >= interval else None

    @property
    def current_interval_seconds(self) -> float:
        """The time between two saves in seconds; infinite if no checkpoints are saved by time."""
        if self.interval_seconds is None:
            return math.inf
        if self.interval_seconds != "auto":
            return self.interval_seconds
        cost = max(self._costs, default=0.0)
        best = math.sqrt(2 * cost * MEAN_SECONDS_BETWEEN_FAILURES)
        return min(max(best, SHORTEST_SECONDS), LONGEST_SECONDS)

    def note_save(self, step: int, cost_seconds: float) -> None:
        """Record that saving the checkpoint of `step` blocked training for `cost_seconds`."""
        self._costs.append(cost_seconds)
        self._last_save, self._saved_step = self.clock(), step
        if self.request is not None:
            self.request.unlink(missing_ok=True)

    @property
    def deadline_is_near(self) -> bool:
        """True if one more step and a save may not fit before the deadline."""
        if self.deadline_seconds is None:
            return False
        margin = min(DEADLINE_SHARE * self.deadline_seconds, DEADLINE_SECONDS)
        longest = max(self._gaps, default=0.0) + max(self._costs, default=0.0)
        return self.seconds_left <= margin + 2 * longest + self.reserve()

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline; infinite if there is no deadline."""
        if self.deadline_seconds is None:
            return math.inf
        return self._began + self.deadline_seconds - self.clock()

    def seconds_to_copy(self, reason: StopReason | None, patience_seconds: float) -> float:
        """Return how many seconds a stopped run may wait for its backup to finish.

        The result is `patience_seconds`, or all the remaining time if the run was stopped by its
        deadline.
        """
        is_deadline = reason is StopReason.DEADLINE
        return max(patience_seconds, self.seconds_left) if is_deadline else patience_seconds
