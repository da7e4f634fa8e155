"""Stopping of runs whose steps change nothing, in Temper's loop and in Trainers.

A step changes nothing if all of its gradients are exactly 0 at a learning rate above 0, or if no
reward function returned a number for any answer. One such step is normal: a batch may have nothing
to learn, and warm-up may begin at a rate of 0. NUM_STEPS such steps in a row are not normal. Groups
with equal rewards (GRPO) have no gradient either, but are normal; the monitor has an alert for many
of them.
"""

import logging
from typing import Any

import torch

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

NUM_STEPS = 20

log = logging.getLogger(__name__)


class Standstill(Observer):
    """An observer that saves and stops a run after NUM_STEPS steps in a row that change nothing.

    It also warns about parameters that have received no gradient in the first NUM_STEPS steps.
    Reading a gradient norm waits for the GPU, so on a GPU the norm is read only every NUM_STEPS
    steps, and in each step while it is 0.
    """

    def __init__(self) -> None:
        self.num_still = 0
        self.is_suspect = True  # until a gradient has been seen
        self._unreached: list[tuple[str, torch.nn.Parameter]] | None = None
        self._num_looked = 0

    def phase_start(self, state: TrainingState) -> None:
        """Restart the counts, because phases may train different parameters."""
        self._unreached, self._num_looked = None, 0

    def after_backward(self, state: TrainingState) -> None:
        """Record which parameters have received a gradient, and warn about the others."""
        if self._num_looked >= NUM_STEPS:
            return
        if self._unreached is None:
            self._unreached = _trained(state)
        self._unreached = [(name, p) for name, p in self._unreached if p.grad is None]
        self._num_looked = self._num_looked + 1 if self._unreached else NUM_STEPS
        if self._unreached and self._num_looked == NUM_STEPS:
            names = [name for name, _ in self._unreached]
            log.warning(
                phrase(
                    "training.parameters_without_gradient",
                    parameters=names[0]
                    if len(names) == 1
                    else f"{names[0]} and {len(names) - 1} more",
                    count=NUM_STEPS,
                    they_are="it is" if len(names) == 1 else "they are",
                ),
            )

    def step_end(self, state: TrainingState) -> None:
        rewards = state.rewards
        if rewards is not None and rewards.num_without >= NUM_STEPS:
            _stop(
                state,
                phrase("training.no_reward_returned", count=rewards.num_without),
            )
        is_explained = rewards is not None and bool(rewards.num_without or rewards.num_tied)
        if state.grad_norm is None or state.learning_rate <= 0 or is_explained:
            return
        is_read = isinstance(state.grad_norm, float) or state.grad_norm.device.type == "cpu"
        if not (is_read or self.is_suspect or state.every(NUM_STEPS)):
            return
        self.is_suspect = float(state.grad_norm) == 0.0
        self.num_still = self.num_still + 1 if self.is_suspect else 0
        if self.num_still >= NUM_STEPS:
            _stop(
                state,
                phrase(
                    "training.all_gradients_zero",
                    count=self.num_still,
                    learning_rate=format_number(state.learning_rate),
                ),
            )

    def state_dict(self) -> dict[str, object]:
        return {"num_still": self.num_still, "is_suspect": self.is_suspect}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.num_still, self.is_suspect = saved["num_still"], saved["is_suspect"]


def _trained(state: TrainingState) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters that are currently trained."""
    assert state.optimizer is not None
    held = {id(p) for group in state.optimizer.param_groups for p in group["params"]}
    named = state.model.named_parameters()
    return [(name, p) for name, p in named if p.requires_grad and id(p) in held]


def _stop(state: TrainingState, message: str) -> None:
    state.interrupt(message, StopReason.NOTHING_LEARNED)
