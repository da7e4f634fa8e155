"""A guard that enforces two limits on system memory: a share of the machine's, and a size.

    guard = MemoryGuard(max_percent=85.0, limit_bytes=8 * 10**9, release=[data.release_memory])
    ...
    action = guard.check()      # after each step

If more than `max_percent` of the machine's memory is in use, the guard releases memory: garbage,
free pages, caches. It does no more than that, because other programs may be the cause.
`limit_bytes` applies to all processes of this training together. On a CPU under Linux, the system
itself refuses memory beyond this limit (`hard_limit`), and the training responds with smaller
micro-batches. Elsewhere, the guard requests smaller micro-batches if the limit is exceeded.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from infrastructure.core.hardware import memory
from infrastructure.core.process_memory import children_bytes, resident_bytes
from infrastructure.optimization.memory_readings import release_memory

MACHINE_SECONDS = 1.0
CHILDREN_SECONDS = 2.0
RELEASE_SECONDS = 30.0
NEAR_LIMIT = 0.9

Release = Callable[[], int]


class Action(StrEnum):
    """The action that `MemoryGuard.check` has taken, or that it requests from the training."""

    NONE = "none"
    RELEASED = "released"
    SMALLER = "smaller"


def machine_percent() -> float:
    """Return the percentage of system memory in use on this machine, or in its container."""
    now = memory()
    return 100.0 * (now.total_bytes - now.available_bytes) / now.total_bytes


@dataclass
class MemoryGuard:
    """A guard that enforces limits on system memory, when its `check` is called after each step.

    Args:
        max_percent: the percentage of system memory in use above which memory is released.
        limit_bytes: the resident memory that this process and its children may use; None means no
            limit.
        release: functions that free memory and return the number of freed bytes.

    Attributes:
        released_bytes, num_releases: the number of freed bytes, and the number of attempts to free
            memory.
        highest_bytes: the highest resident memory that `check` has seen.
    """

    max_percent: float
    limit_bytes: int | None = None
    release: Sequence[Release] = ()
    clock: Callable[[], float] = time.monotonic
    machine_percent: Callable[[], float] = machine_percent
    released_bytes: int = 0
    num_releases: int = 0
    highest_bytes: int = 0
    _children: int = 0
    _next: dict[str, float] = field(default_factory=dict)

    def used_bytes(self) -> int:
        """Return the resident memory of this process and, as last measured, of its children."""
        if self._is_due("children", CHILDREN_SECONDS):
            self._children = children_bytes()
        used = resident_bytes() + self._children
        self.highest_bytes = max(self.highest_bytes, used)
        return used

    def check(self) -> Action:
        """Check memory and release what it can. This usually takes about 20 microseconds."""
        used, limit = self.used_bytes(), self.limit_bytes
        if limit is not None and used > limit:
            self.release_all()
            is_over = self.used_bytes() > limit and self._is_due("smaller", RELEASE_SECONDS)
            return Action.SMALLER if is_over else Action.RELEASED
        if limit is not None and used > NEAR_LIMIT * limit and self._may_release():
            self.release_all()
            return Action.RELEASED
        is_due = self._is_due("machine", MACHINE_SECONDS)
        if is_due and self.machine_percent() > self.max_percent and self._may_release():
            self.release_all()
            return Action.RELEASED
        return Action.NONE

    def release_all(self) -> int:
        """Release everything that can be released, and return the bytes freed."""
        released = sum(release() for release in self.release) + release_memory()
        self.num_releases += 1
        self.released_bytes += released
        return released

    def _may_release(self) -> bool:
        """Return whether enough time has passed since the last release. A release is slow."""
        return self._is_due("release", RELEASE_SECONDS)

    def _is_due(self, what: str, seconds: float) -> bool:
        now = self.clock()
        if now < self._next.get(what, now):
            return False
        self._next[what] = now + seconds
        return True
