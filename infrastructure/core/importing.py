"""Imports without a search for garbage, which takes a quarter of their time: they leave hardly any,
and each search looks at all that was imported before."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class _Process:
    """Attributes:
    is_own: whether it runs one command and ends, so that nobody else's garbage is in it.
    """

    is_own: bool = False


_process = _Process()


def own_process() -> None:
    """This process runs one command: what it has imported is never looked at again."""
    _process.is_own = True


@contextmanager
def importing() -> Iterator[None]:
    """Inside, no garbage is searched for; reference counts free what they always free."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _process.is_own:
            gc.freeze()
        if was_enabled:
            gc.enable()
