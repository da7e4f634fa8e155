"""Lossless conversion of Python values to JSON values and back.

JSON has no tuples, no infinity and no keys other than strings. States of optimizers and schedulers
contain such values. They are written as a mapping with the single key `MARK`.
"""

import math
from typing import Any

from infrastructure.core.errors import InputError

MARK = "#"


def to_json(value: Any, where: str, tuple_key: str | None = None) -> object:
    """Convert `value` to JSON values, without loss.

    Args:
        where: a description of `value` for the error message.
        tuple_key: the key of the mapping as which a tuple is written, `{tuple_key: [...]}`, for
            older file formats. By default, `MARK` is used.

    Raises:
        ValueError: if a part of `value` is not None, a boolean, a number or a string, nor a list,
            tuple or mapping of them.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {MARK: ["float", str(value)]}
    if isinstance(value, list):
        return [to_json(item, where, tuple_key) for item in value]
    if isinstance(value, tuple):
        items = [to_json(item, where, tuple_key) for item in value]
        return {MARK: ["tuple", items]} if tuple_key is None else {tuple_key: items}
    if isinstance(value, dict):
        return _mapping(value, where, tuple_key)
    raise InputError("core.value_not_storable", where=where, type=type(value).__name__)


def _mapping(value: dict[Any, Any], where: str, tuple_key: str | None) -> dict[str, object]:
    if all(isinstance(key, str) and key not in (MARK, tuple_key) for key in value):
        return {key: to_json(item, where, tuple_key) for key, item in value.items()}
    pairs = [[to_json(part, where, tuple_key) for part in pair] for pair in value.items()]
    return {MARK: ["mapping", pairs]}


def from_json(value: Any, tuple_key: str | None = None) -> Any:
    """Restore a value that `to_json` converted with the same `tuple_key`.

    Raises:
        ValueError, TypeError, OverflowError: if `to_json` did not write the value.
    """
    if isinstance(value, list):
        return [from_json(item, tuple_key) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {tuple_key}:
        return tuple(from_json(item, tuple_key) for item in value[tuple_key])
    if MARK not in value:
        return {key: from_json(item, tuple_key) for key, item in value.items()}
    kind, inner = value[MARK]
    if kind == "float":
        return float(inner)
    if kind == "tuple":
        return tuple(from_json(item, tuple_key) for item in inner)
    return {from_json(key, tuple_key): from_json(item, tuple_key) for key, item in inner}
