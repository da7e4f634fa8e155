"""The trainings of one's own loop in this process, for functions that mean the only one."""

from typing import Any, Protocol
from weakref import WeakSet

from infrastructure.core.errors import InputError
from infrastructure.training.core.state import TrainingState


class OwnLoop(Protocol):
    """A `TrainingContext`, as far as it matters here."""

    @property
    def trainer(self) -> Any: ...

    @property
    def state(self) -> TrainingState: ...


_OWN_LOOPS: WeakSet[OwnLoop] = WeakSet()


def remember_own_loop(context: OwnLoop) -> None:
    """Let functions without arguments mean this training as long as there is no other."""
    _OWN_LOOPS.add(context)


def own_loop(context: OwnLoop | None, caller: str) -> OwnLoop:
    """`context`, or the only training of one's own loop that this process has.

    Raises:
        ValueError: there is none, or there are several.
    """
    if context is not None:
        return context
    loops = list(_OWN_LOOPS)
    if len(loops) != 1:
        there = f"{len(loops)} trainings are" if loops else "no training is"
        raise InputError("quantum.own_loop_ambiguous", trainings=there, caller=caller)
    only: OwnLoop = loops[0]
    return only
