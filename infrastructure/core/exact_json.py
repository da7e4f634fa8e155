"""Values of Python as JSON values, and back, exactly.

JSON has no tuples, no infinity and no keys but texts; what it lacks is written as a mapping with
the one key `MARK`. States of optimizers and schedulers have all three.
"""

import math
from typing import Any

from infrastructure.core.errors import InputError

MARK = "#"


def to_json(value: Any, where: str, tuple_key: str | None = None) -> object:
    """`value` as JSON values.

    Args:
        where: what it is, for the error.
        tuple_key: a tuple is written as the mapping `{tuple_key: [...]}`, as a format wants it that
            is older than this module; None: with `MARK`, as `from_json` reads it.

    Raises:
        ValueError: a part of it is neither a number, a text nor made of those.
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
    """The inverse of `to_json` with the same `tuple_key`.

    Raises:
        ValueError, TypeError, OverflowError: `to_json` has not written it.
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
