"""Fewer garbage collections while Python imports packages, prepares data or trains.

Python collects garbage after every 700 new objects, and from time to time examines all objects.
After PyTorch and transformers are imported, there are a million objects, and hardly any of them
ever becomes garbage. A full collection then takes a fifth of a second, and dozens of them happen
before the first training step. Objects that reference counting frees are still freed at once.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from infrastructure.core.transformers_imports import transformers_imported_lightly

COLLECTED_AFTER = (50_000, 20, 10)


@dataclass
class _Imports:
    """The garbage-collection state of this process.

    Attributes:
        are_frozen: whether imported objects are exempt from later garbage collection. Exempting
            them is safe only if no other code has left garbage among them.
    """

    are_frozen: bool = False


_imports = _Imports()


def own_process() -> None:
    """Make garbage collections rare in a process that runs only one command."""
    gc.set_threshold(*COLLECTED_AFTER)
    _imports.are_frozen = True


def do_without_torch() -> None:
    """Make torch unavailable in a process that only encodes rows.

    Without torch, a process starts in half the time and uses a third of the memory. The fast
    tokenizers of transformers do not need torch.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type] # as if not installed
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would warn that torch is missing


def may_freeze() -> bool:
    """Return whether this process may call `gc.unfreeze` without affecting other code."""
    return _imports.are_frozen or gc.get_freeze_count() == 0


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage inside the block, and import transformers without its unneeded parts.

    See `transformers_imports` for these parts.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with transformers_imported_lightly():
            yield
    finally:
        if _imports.are_frozen:
            gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def searching_rarely() -> Iterator[None]:
    """Make garbage collections inside the block as rare as in a `temper` command.

    The existing garbage of a notebook, such as that of a failed run, is collected first. The
    earlier settings are restored afterwards.
    """
    threshold, were_frozen = gc.get_threshold(), _imports.are_frozen
    gc.set_threshold(*COLLECTED_AFTER)
    freezes = not were_frozen and may_freeze()
    if freezes:
        gc.collect()
        _imports.are_frozen = True
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        _imports.are_frozen = were_frozen
        if freezes:
            gc.unfreeze()
