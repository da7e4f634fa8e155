"""Values of Python as JSON values, and back, exactly.

JSON has no tuples, no infinity and no keys but texts; what it lacks is written as a mapping with
the one key `MARK`. States of optimizers and schedulers have all three.
"""

import math
from typing import Any

MARK = "#"


def to_json(value: Any, where: str) -> Any:
    """`value` as JSON values.

    Args:
        where: what it is, for the error.

    Raises:
        ValueError: a part of it is neither a number, a text nor made of those.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {MARK: ["float", str(value)]}
    if isinstance(value, list):
        return [to_json(item, where) for item in value]
    if isinstance(value, tuple):
        return {MARK: ["tuple", [to_json(item, where) for item in value]]}
    if isinstance(value, dict):
        return _mapping(value, where)
    raise ValueError(
        f"{where} holds a {type(value).__name__}, and a checkpoint holds tensors and JSON values"
        " only: numbers, texts, lists, tuples and mappings of them"
    )


def _mapping(value: dict[Any, Any], where: str) -> dict[str, Any]:
    if all(isinstance(key, str) and key != MARK for key in value):
        return {key: to_json(item, where) for key, item in value.items()}
    pairs = [[to_json(key, where), to_json(item, where)] for key, item in value.items()]
    return {MARK: ["mapping", pairs]}


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if MARK not in value:
        return {key: from_json(item) for key, item in value.items()}
    kind, inner = value[MARK]
    if kind == "float":
        return float(inner)
    if kind == "tuple":
        return tuple(from_json(item) for item in inner)
    return {from_json(key): from_json(item) for key, item in inner}
