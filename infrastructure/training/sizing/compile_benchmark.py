"""The decision whether compiling is worth its time in this run, for `training.compile_mode: auto`.

Checkpoints contain the decision, so that a resumed run computes the same way.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase
from infrastructure.models.preserve import preserve
from infrastructure.optimization.compiling import (
    TIMED_STEPS,
    CompileDecision,
    decide_compiling,
)
from infrastructure.optimization.gpu_capability import can_compile
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.forward.gradient_accumulation import accumulate_gradients
from infrastructure.training.loop.loop import TrainingLoop

log = logging.getLogger(__name__)


class CompileBenchmark(Extension):
    """An extension that times the run's first batches with and without torch.compile.

    Weights, random state and gradients are unchanged afterwards.

    Args:
        get_loop: returns the training loop, once the training starts.

    Attributes:
        decision: the measurement. None: the decision was made earlier, or measuring is not
            possible.
    """

    is_of_first_rank = True

    def __init__(self, get_loop: Callable[[], TrainingLoop]) -> None:
        self.get_loop = get_loop
        self.decision: CompileDecision | None = None
        self._is_compiled: bool | None = None

    def train_start(self, state: TrainingState) -> None:
        """Decide whether to compile, or read the decision from the checkpoint if the run is
        resumed.

        Raises:
            CheckpointError: the run began compiled, but this machine cannot compile.
        """
        loop = self.get_loop()
        adapter = loop.optimizer_step.adapter
        reason = can_compile(adapter.device)
        if self._is_compiled and reason:
            raise CheckpointError("training.compile_unavailable_on_resume", reason=reason)
        if self._is_compiled is not None:
            adapter.set_compiled(self._is_compiled)
        elif reason:
            log.warning(phrase("training.compile_not_used", reason=reason))
            self._is_compiled = False
        else:
            self._is_compiled = self._decide(loop, state)

    def state_dict(self) -> dict[str, object]:
        return {} if self._is_compiled is None else {"is_compiled": self._is_compiled}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._is_compiled = saved.get("is_compiled")

    def _decide(self, loop: TrainingLoop, state: TrainingState) -> bool:
        position = state.position
        batches = loop.data.train_batches(position.epoch, position.example, loop.global_batch_size)
        with closing(batches):
            trial = list(islice(batches, TIMED_STEPS))
        device = loop.optimizer_step.device
        with preserve(random=device):
            self.decision = decide_compiling(
                lambda number: _gradients(loop, state, trial[number % len(trial)]),
                loop.optimizer_step.adapter.set_compiled,
                steps_left=loop.total_steps - state.step,
                device=device,
            )
        log.info("%s", self.decision)
        return self.decision.pays


def _gradients(loop: TrainingLoop, state: TrainingState, examples: Sequence[object]) -> None:
    """Run forward and backward passes of one batch, and discard the gradients."""
    step = loop.optimizer_step
    scaler = None if step.scaler is None else torch.amp.GradScaler(step.device.type)
    total_items = max(1, step.adapter.count_items(examples))
    accumulate_gradients(
        state.model,
        step.adapter,
        step.strategy,
        step.optimizer,
        scaler,
        examples,
        micro_batch_size=state.micro_batch_size,
        total_items=total_items,
    )
    step.optimizer.zero_grad()
