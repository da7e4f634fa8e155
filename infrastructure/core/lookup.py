"""Look a name up in a table of choices; a wrong name gets the nearest right one."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that reads most like `name`, or None when none does."""
    matches = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_name(what: str, name: str, choices: Iterable[str]) -> str:
    """The sentence for an unknown name: what it is, what was meant, what there is."""
    choices = sorted(choices)
    meant = nearest(name, choices)
    hint = f"; did you mean {meant!r}?" if meant else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(choices)})"


def look_up(what: str, name: str, table: Mapping[str, Value]) -> Value:
    """`table[name]`.

    Raises:
        ValueError: there is no such name; the text suggests the nearest one.
    """
    if name not in table:
        raise ValueError(unknown_name(what, name, table))
    return table[name]
