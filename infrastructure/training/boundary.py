"""The instant between two optimizer steps that a checkpoint can be taken of, also later."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from infrastructure.backup.random_state import capture_random, restore_random
from infrastructure.training.log_window import LogWindow
from infrastructure.training.state import Position, TrainingState


@dataclass
class Boundary:
    """What a checkpoint of this moment must hold, besides what the state itself remembers.

    See `TrainingState` for `step_is_ending`.
    """

    random: dict[str, torch.Tensor]
    hooks: dict[str, Any]
    position: Position
    log: LogWindow
    step_is_ending: bool


class HasLog(Protocol):
    """What sums up the steps since the last line of metrics."""

    log: LogWindow


@contextmanager
def at_boundary(
    loop: HasLog, state: TrainingState, boundary: Boundary, device: torch.device
) -> Iterator[None]:
    """Inside, position, log and generators are those of `boundary`; the weights must be too."""
    now = state.position, loop.log, state.step_is_ending, capture_random(device)
    go_back(loop, state, boundary, device)
    try:
        yield
    finally:
        state.position, loop.log, state.step_is_ending, random = now
        restore_random(random, device)


def go_back(loop: HasLog, state: TrainingState, boundary: Boundary, device: torch.device) -> None:
    """Put position, log and generators back to what they were at `boundary`."""
    state.position, loop.log = replace(boundary.position), replace(boundary.log)
    state.step_is_ending = boundary.step_is_ending
    restore_random(boundary.random, device)
