"""A context in which a Trainer's steps can be tried without changing its state.

Weights are not restored, because the caller does not step the run's own optimizer.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from infrastructure.models.preserve import preserve
from infrastructure.optimization.device_errors import free_memory

Restore = Callable[[], None]

# Modules whose objects hold a Trainer's counters: its state, its accelerator, TRL's own helpers.
COUNTING = ("transformers.trainer", "accelerate.state", "accelerate.accelerator", "trl.")


@contextmanager
def untouched(trainer: Any) -> Iterator[None]:
    """Restore the Trainer's state at the end of the context, except for its weights.

    The random state, gradients, buffers and everything that the Trainer has counted, buffered or
    logged are restored exactly.

    Args:
        trainer: a transformers or TRL trainer, with its model and optimizer.
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
    """Return a function that restores the current attributes of the Trainer and its objects."""
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
    """Return a function that restores the current contents of a container and nested ones.

    The containers stay the same objects, because others hold references to them.
    """
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
