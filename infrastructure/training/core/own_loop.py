"""The runs with a custom loop in this process, for functions that use the only one by default."""

from typing import Any, Protocol
from weakref import WeakSet

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.training.core.state import TrainingState


class OwnLoop(Protocol):
    """The part of a `TrainingContext` that the functions for custom loops use."""

    @property
    def trainer(self) -> Any: ...

    @property
    def state(self) -> TrainingState: ...


_OWN_LOOPS: WeakSet[OwnLoop] = WeakSet()


def remember_own_loop(context: OwnLoop) -> None:
    """Register a run that functions without arguments use while it is the only one."""
    _OWN_LOOPS.add(context)


def own_loop(context: OwnLoop | None, caller: str) -> OwnLoop:
    """Return `context`, or the only run with a custom loop in this process.

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
