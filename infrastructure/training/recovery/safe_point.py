"""The moments between two steps at which a training can be saved, and gone back to on an error."""

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
    """What sums up the steps since the last record, and judges them."""

    sums: MetricAccumulator
    watch: LossSpikeDetector


@dataclass
class SafePoint:
    """What a checkpoint of this moment must hold, besides what the state itself remembers.

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
        """This moment; later changes do not reach it."""
        return cls(
            random=capture_random(device),
            hooks=copy.deepcopy(hooks.state_dict()),
            position=replace(state.position),
            sums=replace(losses.sums),
            watch=replace(losses.watch),
            step_is_ending=state.step_is_ending,
        )

    def restore(self, state: TrainingState, losses: Losses, device: torch.device) -> None:
        """Put everything back but the hooks, whose state is taken from here where it is saved."""
        restore_random(self.random, device)
        state.position = replace(self.position)
        state.step_is_ending = self.step_is_ending
        losses.sums, losses.watch = replace(self.sums), replace(self.watch)


@contextmanager
def at_safe_point(
    point: SafePoint, state: TrainingState, losses: Losses, device: torch.device
) -> Iterator[None]:
    """Inside, everything is as it was at `point`; the weights must be those it had."""
    sums, watch = losses.sums, losses.watch
    now = SafePoint(capture_random(device), {}, state.position, sums, watch, state.step_is_ending)
    point.restore(state, losses, device)
    try:
        yield
    finally:
        now.restore(state, losses, device)
        losses.sums, losses.watch = sums, watch


def forget_unscaling(scaler: torch.amp.GradScaler | None, device: torch.device) -> None:
    """Let a loss scaler begin a step anew that was broken off after `unscale_`."""
    if scaler is not None:
        scaler.scale(torch.zeros((), device=device))  # it makes its tensors at the first use
        scaler.update(scaler.get_scale())


class FirstStates:
    """The hooks' states as this process began, for checkpoints that do not know a hook.

    A hook that has nothing to remember is left out of a checkpoint; gone back to, it must have
    nothing to remember again.
    """

    def __init__(self, hooks: HookRunner) -> None:
        self._states = {hook.name: copy.deepcopy(hook.state_dict()) for hook in hooks.hooks}

    def completed(self, saved: JsonObject, hooks: HookRunner) -> dict[str, Any]:
        """`saved`, and the first state of each hook that it lacks and that has changed."""
        lacking = {hook.name: hook.state_dict() for hook in hooks.hooks if hook.name not in saved}
        changed = {
            name: copy.deepcopy(self._states[name])
            for name, now in lacking.items()
            if name in self._states and now != self._states[name]
        }
        return {**saved, **changed}
