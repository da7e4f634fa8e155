"""JSON of strangers: what is nested beyond reason is refused like what is no JSON at all.

`json.loads` raises a RecursionError there on one Python, and on another gives a value on which any
function that calls itself fails later.
"""

import json
from collections.abc import Callable

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase

MAX_DEPTH = 100

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]


def parse_json(
    text: str | bytes,
    *,
    parse_constant: Callable[[str], object] | None = None,
    object_hook: Callable[[JsonObject], object] | None = None,
) -> JsonValue:
    """The value of a JSON text; the arguments are those of `json.loads`.

    Raises:
        ValueError: it is no JSON, no UTF-8, or nested deeper than MAX_DEPTH.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=parse_constant, object_hook=object_hook)
    except RecursionError:
        raise ValueError(too_deep()) from None
    if is_too_deep(value):
        raise ValueError(too_deep())
    return value


def parse_record(text: str) -> JsonValue:
    """The value of a JSON text none of whose objects has a key twice; raises what `parse_json`
    does."""
    try:
        value: JsonValue = RECORD_DECODER.decode(text)
    except RecursionError:
        raise ValueError(too_deep()) from None
    if is_too_deep(value):
        raise ValueError(too_deep())
    return value


def without_repeats(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """The object of these keys and values, as an `object_pairs_hook`.

    Raises:
        ValueError: a key appears twice with different values, of which an object keeps one.
    """
    made = dict(pairs)
    if len(made) != len(pairs):
        for key, value in pairs:
            if made[key] != value:
                raise InputError("core.duplicate_json_key", key=key)
    return made


RECORD_DECODER = json.JSONDecoder(object_pairs_hook=without_repeats)


def as_object(value: JsonValue) -> JsonObject:
    """`value`, which a record of ours has as a JSON object.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{_shown(value)} is no JSON object")
    return value


def as_list(value: JsonValue) -> list[JsonValue]:
    """`value`, which a record of ours has as a list.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, list):
        raise TypeError(f"{_shown(value)} is no list")
    return value


def as_text(value: JsonValue) -> str:
    """`value`, which a record of ours has as a text.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} is no text")
    return value


def as_number(value: JsonValue) -> float:
    """`value`, which a record of ours has as a number, whole or not.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{_shown(value)} is no number")
    return value


def as_integer(value: JsonValue) -> int:
    """`value`, which a record of ours has as a whole number.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{_shown(value)} is no whole number")
    return value


def _shown(value: JsonValue) -> str:
    return repr(value)[:80]


def too_deep() -> str:
    """The words for it."""
    return phrase("core.nested_too_deep", max_depth=MAX_DEPTH)


def is_too_deep(value: object, max_depth: int = MAX_DEPTH) -> bool:
    """Whether lists and objects stand inside each other more than `max_depth` times."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(max_depth):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)
