"""Python garbage collection between steps, at fixed intervals, instead of in the middle of a step.

Python collects garbage whenever enough objects have been created. With a large library loaded, a
full collection takes a tenth of a second and can happen in the middle of a step. Here, objects that
exist when training begins are excluded (`gc.freeze`), and collections run only between steps.
"""

import gc
import time
from collections.abc import Callable

from infrastructure.core.importing import may_freeze

INTERVAL_SECONDS = 10.0


class ScheduledCollection:
    """Scheduled garbage collection, which replaces Python's automatic one between `start` and
    `stop`.

    Call `collect_if_due` between steps.

    Attributes:
        num_collections, seconds: the number of collections, and the time that they took.
    """

    def __init__(
        self,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.clock = clock
        self.num_collections = 0
        self.seconds = 0.0
        self._next_time = 0.0
        self._was_enabled: bool | None = None
        self._has_frozen = False

    def start(self) -> None:
        """Disable Python's automatic garbage collection. A second call does nothing."""
        if self._was_enabled is not None:
            return
        self._was_enabled = gc.isenabled()
        gc.disable()
        self._collect()
        self._has_frozen = may_freeze()
        if self._has_frozen:
            gc.freeze()

    def collect_if_due(self) -> None:
        """Collect garbage if the last collection was at least `interval_seconds` ago."""
        if self._was_enabled is not None and self.clock() >= self._next_time:
            self._collect()

    def stop(self) -> None:
        """Restore Python's automatic garbage collection as it was before `start`."""
        if self._was_enabled is None:
            return
        if self._has_frozen:
            gc.unfreeze()
        if self._was_enabled:
            gc.enable()
        self._was_enabled = None

    def _collect(self) -> None:
        started = self.clock()
        gc.collect()
        now = self.clock()
        self.num_collections += 1
        self.seconds += now - started
        self._next_time = now + self.interval_seconds
