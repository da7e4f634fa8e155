"""Texts of a person or of data: shown as they stand, whatever words they hold.

A sentence about settings is spelled for whoever reads it (`config.sources.languages`): as flags, as
keywords or as keys. What comes in from outside is noted here where it comes in, and no name that
it holds is spelled otherwise afterwards. So a sentence may keep a key that could be a flag, and
never changes a column, a path or a row.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

MAX_NOTED = 100_000
# What a text has that can hold a name of a setting, or words that stand beside one.
_MAY_MATTER = re.compile(r"--|[a-z][._][a-z]|\(|`|verbose|device|unknown\s+key|Ctrl-C")

_noted: dict[str, None] = {}


def user_text(text: str) -> str:
    """Note a text that is to be shown as it stands, and return it."""
    if _MAY_MATTER.search(text) and len(_noted) < MAX_NOTED:
        _noted[text] = None
    return text


def note_user_values(*values: object) -> None:
    """Note all texts inside some values: of lists, of mappings and of their keys."""
    for value in values:
        if isinstance(value, str | PurePath):
            user_text(str(value))
        elif isinstance(value, Mapping):
            note_user_values(*value.keys(), *value.values())
        elif isinstance(value, Iterable) and not isinstance(value, bytes):
            note_user_values(*value)


def user_texts() -> tuple[str, ...]:
    """The noted texts that may hold a name of a setting."""
    return tuple(_noted)


def forget_user_texts() -> None:
    """Begin again, as a command does."""
    _noted.clear()
