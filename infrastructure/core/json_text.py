"""A parser of JSON from untrusted sources, which rejects deeply nested JSON as invalid.

For deeply nested JSON, `json.loads` raises a RecursionError in some versions of Python. In others,
it returns a value on which any recursive function fails later.
"""

import json
from collections.abc import Callable
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase

MAX_DEPTH = 100

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]


def parse_json(
    text: str | bytes, *, parse_constant: Callable[[str], object] | None = None
) -> JsonValue:
    """Parse a JSON text. `parse_constant` is that of `json.loads`.

    Raises:
        ValueError: if the text is not JSON, not UTF-8, or nested deeper than MAX_DEPTH.
    """
    return _shallow(lambda: json.loads(text, parse_constant=parse_constant))


def json_of(path: Path | None) -> JsonObject:
    """Return the JSON object in a file; {} if the file is missing, unreadable or something else."""
    try:
        value = None if path is None else parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_record(text: str) -> JsonValue:
    """Parse a JSON text, and reject objects that have a key twice with different values.

    Raises:
        ValueError: as in `parse_json`, or if an object has a key twice with different values.
    """
    return _shallow(lambda: RECORD_DECODER.decode(text))


def _shallow(parse: Callable[[], JsonValue]) -> JsonValue:
    try:
        value = parse()
    except RecursionError:
        raise ValueError(too_deep()) from None
    if is_too_deep(value):
        raise ValueError(too_deep())
    return value


def without_repeats(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Return a JSON object with these keys and values, as an `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: if a key appears twice with different values, because an object keeps only one.
    """
    made = dict(pairs)
    if len(made) != len(pairs):
        for key, value in pairs:
            if made[key] != value:
                raise InputError("core.duplicate_json_key", key=key)
    return made


RECORD_DECODER = json.JSONDecoder(object_pairs_hook=without_repeats)


def as_object(value: JsonValue) -> JsonObject:
    """Return `value` if it is a JSON object, as Temper's records require.

    Raises:
        TypeError: if `value` is not an object.
    """
    if not isinstance(value, dict):
        raise TypeError(phrase("core.not_a_json_object", value=_shown(value)))
    return value


def as_list(value: JsonValue) -> list[JsonValue]:
    """Return `value` if it is a list, as Temper's records require.

    Raises:
        TypeError: if `value` is not a list.
    """
    if not isinstance(value, list):
        raise TypeError(phrase("core.not_a_json_list", value=_shown(value)))
    return value


def as_text(value: JsonValue) -> str:
    """Return `value` if it is a string, as Temper's records require.

    Raises:
        TypeError: if `value` is not a string.
    """
    if not isinstance(value, str):
        raise TypeError(phrase("core.not_a_json_string", value=_shown(value)))
    return value


def as_number(value: JsonValue) -> float:
    """Return `value` if it is a number, as Temper's records require.

    Raises:
        TypeError: if `value` is neither an integer nor a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(phrase("core.not_a_json_number", value=_shown(value)))
    return value


def as_integer(value: JsonValue) -> int:
    """Return `value` if it is an integer, as Temper's records require.

    Raises:
        TypeError: if `value` is not an integer.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(phrase("core.not_a_json_integer", value=_shown(value)))
    return value


def _shown(value: JsonValue) -> str:
    return repr(value)[:80]


def too_deep() -> str:
    """Return the error text for JSON that is nested too deeply."""
    return phrase("core.nested_too_deep", max_depth=MAX_DEPTH)


def is_too_deep(value: object, max_depth: int = MAX_DEPTH) -> bool:
    """Return whether lists and objects are nested more than `max_depth` levels deep."""
    nested = (dict, list)  # `dict | list` is created each time
    level = [value] if isinstance(value, nested) else []
    for _ in range(max_depth):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, nested)
        ]
    return bool(level)
