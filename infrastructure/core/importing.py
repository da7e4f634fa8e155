"""Less search for garbage where much is imported, or prepared and trained.

Python searches whenever 700 objects are new, and now and then through all that there are. After
PyTorch and transformers are imported these are a million, nearly none of which is ever garbage: a
search takes a fifth of a second, and some dozen of them come before the first step of a training.
What reference counts free is freed as always.
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
    """Attributes:
    are_frozen: whether no search looks at them again: nobody else's garbage is among them.
    """

    are_frozen: bool = False


_imports = _Imports()


def own_process() -> None:
    """This process runs one command and ends."""
    gc.set_threshold(*COLLECTED_AFTER)
    _imports.are_frozen = True


def do_without_torch() -> None:
    """In a process that only encodes rows: it starts in half the time, and takes a third of the
    memory. transformers' own fast tokenizers need no torch."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type] # as if not installed
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # which it would say


def may_freeze() -> bool:
    """Whether `gc.freeze`, and `gc.unfreeze` later, undo nothing of what others have set aside."""
    return _imports.are_frozen or gc.get_freeze_count() == 0


@contextmanager
def importing() -> Iterator[None]:
    """Inside, no garbage is searched for, and transformers is imported without what nothing here
    needs (`transformers_imports`)."""
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
    """Inside, garbage is searched for as in a process of one's own; afterwards as before. A
    notebook's own garbage, such as what a training that failed has left, goes first."""
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
