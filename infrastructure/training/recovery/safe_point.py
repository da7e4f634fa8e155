"""Safe points: moments between two steps at which a run can be saved."""

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
    """Sums over the steps since the last metrics record, and the detector of loss spikes."""

    sums: MetricAccumulator
    watch: LossSpikeDetector


@dataclass
class SafePoint:
    """A copy of the state, apart from weights and optimizer, at a moment between two steps.

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
        """Copy the current state."""
        return cls(
            random=capture_random(device),
            hooks=copy.deepcopy(hooks.state_dict()),
            position=replace(state.position),
            sums=replace(losses.sums),
            watch=replace(losses.watch),
            step_is_ending=state.step_is_ending,
        )

    def restore(self, state: TrainingState, losses: Losses, device: torch.device) -> None:
        """Restore everything except the hooks' states, which only checkpoints use."""
        restore_random(self.random, device)
        state.position = replace(self.position)
        state.step_is_ending = self.step_is_ending
        losses.sums, losses.watch = replace(self.sums), replace(self.watch)


@contextmanager
def at_safe_point(
    point: SafePoint, state: TrainingState, losses: Losses, device: torch.device
) -> Iterator[None]:
    """Restore `point` temporarily, while the context lasts.

    The weights must not have changed since `point`.
    """
    sums, watch = losses.sums, losses.watch
    now = SafePoint(capture_random(device), {}, state.position, sums, watch, state.step_is_ending)
    point.restore(state, losses, device)
    try:
        yield
    finally:
        now.restore(state, losses, device)
        losses.sums, losses.watch = sums, watch


def forget_unscaling(scaler: torch.amp.GradScaler | None, device: torch.device) -> None:
    """Reset a loss scaler after `unscale_`, so that an aborted step can be repeated."""
    if scaler is not None:
        scaler.scale(torch.zeros((), device=device))  # it creates its tensors at the first use
        scaler.update(scaler.get_scale())


class FirstStates:
    """The hooks' states when this process started.

    A checkpoint leaves out hooks without state. After a rollback to such a checkpoint, the hook is
    reset to its first state.
    """

    def __init__(self, hooks: HookRunner) -> None:
        self._states = {hook.name: copy.deepcopy(hook.state_dict()) for hook in hooks.hooks}

    def completed(self, saved: JsonObject, hooks: HookRunner) -> dict[str, Any]:
        """Add to `saved` the first state of each hook that has no state in `saved` and has changed
        since.
        """
        lacking = {hook.name: hook.state_dict() for hook in hooks.hooks if hook.name not in saved}
        changed = {
            name: copy.deepcopy(self._states[name])
            for name, now in lacking.items()
            if name in self._states and now != self._states[name]
        }
        return {**saved, **changed}
