"""Enforcement of a run's memory limits after every step.

Between steps, garbage is collected when due, memory is released above `max_memory_percent`, cached
data unused for `cache_ttl` is dropped, and the GPU allocator's free blocks beyond `gpu_cache_size`
are released. On a CPU under Linux, the kernel enforces `cpu_memory_limit`: an allocation beyond it
fails, and the loop repeats the batch in smaller micro-batches.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from infrastructure.core.errors import MemoryLimitError
from infrastructure.core.hardware import MIB
from infrastructure.core.messages import phrase
from infrastructure.core.process_memory import HardLimit, can_limit_hard
from infrastructure.optimization.device_errors import is_out_of_memory
from infrastructure.optimization.garbage import ScheduledCollection
from infrastructure.optimization.gpu_capability import drop_gpu_cache_above
from infrastructure.optimization.memory_guard import Action, MemoryGuard
from infrastructure.optimization.recommendations import Recommendation
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.recovery.recovery_log import record_recovery

CACHE_SECONDS = 60.0
NUM_RECOMMENDED = 3


@dataclass(frozen=True)
class MemoryLimits:
    """The configured memory limits.

    Attributes:
        max_percent: share of system memory in use above which memory is released.
        limit_bytes: resident memory of the training and its processes. None: no limit.
        gpu_cache_bytes: free blocks that the GPU's allocator may keep. None: no limit.
        cache_seconds: time after which unused data in memory is dropped. None: never.
    """

    max_percent: float = 85.0
    limit_bytes: int | None = None
    gpu_cache_bytes: int | None = None
    cache_seconds: int | None = None


class MemoryExtension(Extension):
    """An extension that enforces memory limits.

    Args:
        settings: the limits.
        device: the device on which the model trains.
        release_data: releases cached data that was unused for the given seconds, and returns the
            bytes.
        recommend: returns recommendations for saving memory; called once, when memory is
            short.
    """

    is_of_first_rank = True

    def __init__(
        self,
        settings: MemoryLimits,
        device: torch.device,
        *,
        release_data: Callable[[float], int] = lambda _: 0,
        recommend: Callable[[TrainingState], list[Recommendation]] = lambda _: [],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.device = device
        self.release_data = release_data
        self.recommend = recommend
        self.clock = clock
        self.guard = MemoryGuard(
            settings.max_percent, settings.limit_bytes, [lambda: release_data(0.0)]
        )
        self.garbage = ScheduledCollection()
        self.recommended: list[Recommendation] = []
        self._hard: HardLimit | None = None
        self._next_cache = 0.0
        self._is_reported = False

    def train_start(self, state: TrainingState) -> None:
        """Start enforcing the memory limits.

        Raises:
            MemoryLimitError: the training exceeds its limit before its first step.
        """
        self.garbage.start()
        limit = self.settings.limit_bytes
        if limit is None:
            return
        if self.guard.check() is Action.SMALLER:
            used = self.guard.used_bytes()
            raise MemoryLimitError(
                "training.memory_limit_exceeded_at_start", limit=_mib(limit), used=_mib(used)
            )
        if self.device.type == "cpu" and can_limit_hard():
            self.guard.release_all()
            self._hard = HardLimit(limit)
            self._hard.tighten(self.guard.used_bytes())

    def step_end(self, state: TrainingState) -> None:
        self.garbage.collect_if_due()
        action = self.guard.check()
        if action is not Action.NONE:
            self._answer(action, state)
        if self._hard is not None:
            self._hard.tighten(self.guard.used_bytes())
        self._drop_caches()

    def error(self, state: TrainingState) -> None:
        """Add a note that names the memory limit if it caused the error."""
        if self._hard is not None and state.error is not None and is_out_of_memory(state.error):
            limit = _mib(self._hard.limit_bytes)
            state.error.add_note(phrase("training.memory_limit_allows_no_more", limit=limit))

    def train_end(self, state: TrainingState) -> None:
        if self._hard is not None:
            self._hard.lift()
            self._hard = None
        self.garbage.stop()

    def facts(self) -> dict[str, object]:
        """Return the actions taken and the highest memory use, as JSON values for summary.json."""
        return {
            "highest_bytes": self.guard.highest_bytes,
            "limit_bytes": self.settings.limit_bytes,
            "num_releases": self.guard.num_releases,
            "released_bytes": self.guard.released_bytes,
            "garbage_collections": self.garbage.num_collections,
            "garbage_seconds": self.garbage.seconds,
            "recommendations": [str(one) for one in self.recommended],
        }

    def _answer(self, action: Action, state: TrainingState) -> None:
        if action is Action.SMALLER and state.micro_batch_size > 1:
            state.micro_batch_size //= 2
            done = phrase("training.micro_batch_reduced", size=state.micro_batch_size)
        elif self._is_reported:
            return
        else:
            done = phrase("training.unused_memory_released")
        advice = self._advice(state)
        used = _mib(self.guard.used_bytes())
        record_recovery(
            state,
            RecoveryKind.SHORT_OF_MEMORY,
            done,
            phrase("training.main_memory_use", used=used, advice=advice),
        )
        self._is_reported = True

    def _advice(self, state: TrainingState) -> str:
        if not self._is_reported:
            self.recommended = self.recommend(state)[:NUM_RECOMMENDED]
        return "".join(f"; {one}" for one in self.recommended)

    def _drop_caches(self) -> None:
        now, seconds = self.clock(), self.settings.cache_seconds
        if seconds is not None and now >= self._next_cache:
            self.release_data(float(seconds))
            self._next_cache = now + min(CACHE_SECONDS, seconds)
        if self.settings.gpu_cache_bytes is not None:
            drop_gpu_cache_above(self.device, self.settings.gpu_cache_bytes)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.0f} MiB"
