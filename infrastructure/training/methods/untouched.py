"""A Trainer that is tried out, and is afterwards what it was: what it counts, draws and holds.

Weights are not kept: who tries does not step the training's own optimizer.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from infrastructure.training.core.error_handlers import free_memory
from infrastructure.training.core.preserve import preserve

Restore = Callable[[], None]

# Whose objects hold what a Trainer counts: its state, its accelerator, TRL's own helpers.
COUNTING = ("transformers.trainer", "accelerate.state", "accelerate.accelerator", "trl.")


@contextmanager
def untouched(trainer: Any) -> Iterator[None]:
    """Inside, steps may be tried; afterwards random numbers, gradients, buffers and everything that
    the Trainer has counted, buffered or logged are what they were, bit for bit.

    Args:
        trainer: of transformers or TRL, with its model and optimizer.
    """
    device = torch.device(trainer.args.device)
    restore = _attributes(trainer)
    try:
        with preserve(trainer.model, random=device, modes=True, gradients=True, buffers=True):
            yield
    finally:
        restore()
        free_memory(device)


def _attributes(trainer: Any) -> Restore:
    """Of the Trainer, and of what it counts with."""
    seen: set[int] = {id(trainer)}
    restores = [_contents(vars(trainer), seen)]
    for value in [*vars(trainer).values(), trainer.accelerator.gradient_state]:
        counts = type(value).__module__.startswith(COUNTING) and hasattr(value, "__dict__")
        if counts and not isinstance(value, torch.nn.Module | type) and id(value) not in seen:
            seen.add(id(value))
            restores.append(_contents(vars(value), seen))

    def restore_all() -> None:
        for restore in restores:
            restore()

    return restore_all


def _contents(container: Any, seen: set[int]) -> Restore:
    """What is in a container, and in those within it, which stay the same objects: others hold on
    to them."""
    seen.add(id(container))
    values = list(container.values()) if isinstance(container, dict) else list(container)
    within = [
        _contents(value, seen)
        for value in values
        if isinstance(value, dict | list | set | deque) and id(value) not in seen
    ]
    was = dict(container) if isinstance(container, dict) else list(container)

    def restore() -> None:
        container.clear()
        if isinstance(container, dict | set):
            container.update(was)
        else:
            container.extend(was)
        for one in within:
            one()

    return restore
