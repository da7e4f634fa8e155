"""Registry of the runs in this process that use a custom training loop.

Functions for custom loops use the only registered run if they are called without a context.
"""

from typing import Any, Protocol
from weakref import WeakSet

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.training.core.state import TrainingState


class OwnLoop(Protocol):
    """The part of a `TrainingContext` that functions for custom training loops need."""

    @property
    def trainer(self) -> Any: ...

    @property
    def state(self) -> TrainingState: ...


_OWN_LOOPS: WeakSet[OwnLoop] = WeakSet()


def remember_own_loop(context: OwnLoop) -> None:
    """Register a run that uses a custom training loop."""
    _OWN_LOOPS.add(context)


def own_loop(context: OwnLoop | None, caller: str) -> OwnLoop:
    """Return `context`, or if it is None, the only run with a custom loop in this process.

    Raises:
        ValueError: there is no such run, or there are several.
    """
    if context is not None:
        return context
    loops = list(_OWN_LOOPS)
    if len(loops) != 1:
        there = phrase("training.no_own_loop")
        if loops:
            there = phrase("training.several_own_loops", count=len(loops))
        raise InputError("training.own_loop_ambiguous", trainings=there, caller=caller)
    only: OwnLoop = loops[0]
    return only
