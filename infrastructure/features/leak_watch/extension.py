"""The extension that reads the memory in use every few seconds and records a leak."""

import time
from collections.abc import Callable
from typing import Any

import torch

from infrastructure.core.messages import phrase
from infrastructure.core.process_memory import children_bytes, resident_bytes
from infrastructure.features.leak_watch.leak_watch import LeakWatch
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.recovery.recovery_log import record_recovery

KIND = "memory_leak"
INTERVAL_SECONDS = 10.0


class LeakExtension(Extension):
    """An extension that records a leak and the lines that hold the memory. It changes no result.

    Args:
        trainer: the trainer; its configuration says whether the model is compiled.
        watch: the detector.
        interval_seconds: the time between two readings.
    """

    name = "leak_watch"
    is_of_first_rank = True

    def __init__(
        self,
        trainer: Any,
        watch: LeakWatch | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        training = getattr(trainer, "training_config", None)
        is_compiled = getattr(training, "compile_mode", None) is not None
        self.watch = watch or LeakWatch(counts_tensors=not is_compiled)
        self.interval_seconds = interval_seconds
        self.clock = clock
        self._next_time = 0.0

    def step_end(self, state: TrainingState) -> None:
        now = self.clock()
        if now < self._next_time:
            return
        self._next_time = now + self.interval_seconds
        device = next(state.model.parameters()).device
        if device.type == "cuda":
            used = torch.cuda.memory_allocated(device)
        else:
            used = resident_bytes() + children_bytes()
        if leak := self.watch.add(state.step, used):
            record_recovery(state, KIND, phrase("leak_watch.training_continues"), str(leak))

    def train_end(self, state: TrainingState) -> None:
        self.watch.stop()
