"""The moments between two steps at which a training can be saved, and gone back to on an error."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from infrastructure.backup.state.random_state import capture_random, restore_random
from infrastructure.training.core.metric_accumulator import LogWindow
from infrastructure.training.core.state import Position, TrainingState
from infrastructure.training.extensions.extension_hooks import HookRunner
from infrastructure.training.recovery.loss_spikes import LossWatch


@dataclass
class Boundary:
    """What a checkpoint of this moment must hold, besides what the state itself remembers.

    See `TrainingState` for `step_is_ending`.
    """

    random: dict[str, torch.Tensor]
    hooks: dict[str, Any]
    position: Position
    log: LogWindow
    watch: LossWatch
    step_is_ending: bool

    @classmethod
    def of(
        cls,
        state: TrainingState,
        hooks: HookRunner,
        log: LogWindow,
        watch: LossWatch,
        device: torch.device,
    ) -> "Boundary":
        """This moment; later changes do not reach it."""
        return cls(
            random=capture_random(device),
            hooks=copy.deepcopy(hooks.state_dict()),
            position=replace(state.position),
            log=replace(log),
            watch=replace(watch),
            step_is_ending=state.step_is_ending,
        )

    def restore(self, state: TrainingState, device: torch.device) -> None:
        """Put position and random state back; hooks, log and watch are the loop's."""
        restore_random(self.random, device)
        state.position = replace(self.position)
        state.step_is_ending = self.step_is_ending


class Keeper(Protocol):
    """What sums up the steps since the last record, and judges them."""

    log: LogWindow
    watch: LossWatch


@contextmanager
def at_boundary(
    loop: Keeper, state: TrainingState, boundary: Boundary, device: torch.device
) -> Iterator[None]:
    """Inside, everything is as it was at `boundary`; the weights must be those it had."""
    now = Boundary({}, {}, state.position, loop.log, loop.watch, state.step_is_ending)
    now.random = capture_random(device)
    boundary.restore(state, device)
    loop.log, loop.watch = replace(boundary.log), replace(boundary.watch)
    try:
        yield
    finally:
        now.restore(state, device)
        loop.log, loop.watch = now.log, now.watch


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

    def completed(self, saved: dict[str, Any], hooks: HookRunner) -> dict[str, Any]:
        """`saved`, and the first state of each hook that it lacks and that has changed."""
        lacking = {hook.name: hook.state_dict() for hook in hooks.hooks if hook.name not in saved}
        changed = {
            name: copy.deepcopy(self._states[name])
            for name, now in lacking.items()
            if name in self._states and now != self._states[name]
        }
        return {**saved, **changed}
