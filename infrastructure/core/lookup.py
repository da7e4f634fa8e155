"""Look-up of names in a table. The error for an unknown name suggests the nearest valid one."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase

Value = TypeVar("Value")


LIKE_ENOUGH = 0.7  # out of 1; a wrong hint is worse than none
WORD = re.compile(r"[^\W_]+")


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that the user probably meant by `name`; None if no choice is similar.

    Words that name and choice share at the beginning or end are ignored, so `--save-steps` is not
    similar to `--max-steps`.
    """
    likeness = {choice: _likeness(name, choice) for choice in choices}
    best = max(likeness, key=lambda choice: likeness[choice], default=None)
    return best if best is not None and likeness[best] >= LIKE_ENOUGH else None


def _likeness(name: str, choice: str) -> float:
    """Return the similarity of two names, from 0 to 1. Case and punctuation are ignored."""
    given, known = (WORD.findall(text.lower()) for text in (name, choice))
    whole = len("".join(given))
    if given and whole >= 4 and "".join(known).startswith("".join(given)):
        return max(LIKE_ENOUGH, whole / len("".join(known)))
    for end in (0, -1):
        while len(given) > 1 and len(known) > 1 and given[end] == known[end]:
            del given[end], known[end]
    left, right = "".join(given), "".join(known)
    if whole >= 4 and _is_one_letter_more(*sorted((left, right), key=len)):
        return 1 - 1 / (3 * whole)
    if _are_swapped(left, right):
        return 1 - 1 / (4 * whole)
    if len(left) == len(right) and whole >= 6 and sum(map(str.__ne__, left, right)) == 1:
        return max(LIKE_ENOUGH, 1 - 1 / whole)
    return difflib.SequenceMatcher(None, left, right).ratio()


def _is_one_letter_more(shorter: str, longer: str) -> bool:
    """Return whether `longer` is `shorter` plus one letter at any position."""
    return len(longer) == len(shorter) + 1 and any(
        longer[:i] + longer[i + 1 :] == shorter for i in range(len(longer))
    )


def _are_swapped(left: str, right: str) -> bool:
    """Return whether the words differ only in two neighboring letters that are swapped."""
    differing = [i for i, pair in enumerate(zip(left, right, strict=False)) if len(set(pair)) > 1]
    if len(left) != len(right) or len(differing) != 2:
        return False
    first, second = differing
    return second == first + 1 and left[first : second + 1] == right[first : second + 1][::-1]


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest choice, or "" if none is near."""
    return meant_hint(nearest(name, choices))


def meant_hint(meant: str | None) -> str:
    """Return a sentence that suggests the name `meant`, or "" if it is None."""
    return phrase("core.did_you_mean", meant=meant) if meant else ""


def unknown_name(
    what: str, name: str, choices: Iterable[str], shown: Sequence[str] | int | None = None
) -> str:
    """Return the error text for an unknown name, with the nearest choice and a list of the choices.

    Args:
        shown: the choices to list, or the number of nearest choices to list; by default, all are
            listed.
    """
    choices = sorted(choices)
    hint = did_you_mean(name, choices)
    if isinstance(shown, int) and len(choices) > shown:
        shown = difflib.get_close_matches(name, choices, shown, cutoff=0.0)
    if shown is not None and not isinstance(shown, int):
        return phrase(
            "core.unknown_name_of_many",
            what=what,
            name=name,
            hint=hint,
            known=", ".join(shown),
            more=len(choices) - len(shown),
        )
    if not choices:
        return phrase("core.unknown_name_of_none", what=what, name=name)
    return phrase("core.unknown_name", what=what, name=name, hint=hint, known=", ".join(choices))


def look_up(what: str, name: str, table: Mapping[str, Value]) -> Value:
    """Return `table[name]`.

    Raises:
        ValueError: if the table has no such name; the message suggests the nearest one.
    """
    if name not in table:
        raise InputError(unknown_name(what, name, table))
    return table[name]
