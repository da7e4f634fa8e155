"""Moments between two steps at which a run can be saved, and to which an error returns it."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from infrastructure.backup.state.random_state import capture_random, restore_random
from infrastructure.core.json_text import JsonObject
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import Position, TrainingState
from infrastructure.training.extensions.extension_hooks import HookRunner
from infrastructure.training.recovery.loss_spikes import LossSpikeDetector


class Losses(Protocol):
    """The sums over the steps since the last record, and the detector that judges them."""

    sums: MetricAccumulator
    watch: LossSpikeDetector


@dataclass
class SafePoint:
    """The contents of a checkpoint of one moment, besides the training state itself.

    See `TrainingState` for `step_is_ending`.
    """

    random: dict[str, torch.Tensor]
    hooks: dict[str, Mapping[str, object]]
    position: Position
    sums: MetricAccumulator
    watch: LossSpikeDetector
    step_is_ending: bool

    @classmethod
    def of(
        cls, state: TrainingState, hooks: HookRunner, losses: Losses, device: torch.device
    ) -> "SafePoint":
        """Capture the current moment. Later changes do not affect the result."""
        return cls(
            random=capture_random(device),
            hooks=copy.deepcopy(hooks.state_dict()),
            position=replace(state.position),
            sums=replace(losses.sums),
            watch=replace(losses.watch),
            step_is_ending=state.step_is_ending,
        )

    def restore(self, state: TrainingState, losses: Losses, device: torch.device) -> None:
        """Restore everything except the hooks, whose state is read from here when it is saved."""
        restore_random(self.random, device)
        state.position = replace(self.position)
        state.step_is_ending = self.step_is_ending
        losses.sums, losses.watch = replace(self.sums), replace(self.watch)


@contextmanager
def at_safe_point(
    point: SafePoint, state: TrainingState, losses: Losses, device: torch.device
) -> Iterator[None]:
    """Return to `point` inside the block. The weights must already be those of `point`."""
    sums, watch = losses.sums, losses.watch
    now = SafePoint(capture_random(device), {}, state.position, sums, watch, state.step_is_ending)
    point.restore(state, losses, device)
    try:
        yield
    finally:
        now.restore(state, losses, device)
        losses.sums, losses.watch = sums, watch


def forget_unscaling(scaler: torch.amp.GradScaler | None, device: torch.device) -> None:
    """Let a loss scaler repeat a step that was aborted after `unscale_`."""
    if scaler is not None:
        scaler.scale(torch.zeros((), device=device))  # it creates its tensors at the first use
        scaler.update(scaler.get_scale())


class FirstStates:
    """The hooks' states when this process started, for checkpoints that do not contain a hook.

    A hook without state is left out of a checkpoint. After a rollback to that checkpoint it must be
    without state again.
    """

    def __init__(self, hooks: HookRunner) -> None:
        self._states = {hook.name: copy.deepcopy(hook.state_dict()) for hook in hooks.hooks}

    def completed(self, saved: JsonObject, hooks: HookRunner) -> dict[str, Any]:
        """Return `saved` with the first state of each hook that it lacks and that has changed."""
        lacking = {hook.name: hook.state_dict() for hook in hooks.hooks if hook.name not in saved}
        changed = {
            name: copy.deepcopy(self._states[name])
            for name, now in lacking.items()
            if name in self._states and now != self._states[name]
        }
        return {**saved, **changed}
