"""JSON of strangers: what is nested beyond reason is refused like what is no JSON at all.

`json.loads` raises a RecursionError there on one Python, and on another gives a value on which any
function that calls itself fails later.
"""

import json
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100


def parse_json(
    text: str | bytes,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """The value of a JSON text; the arguments are those of `json.loads`.

    Raises:
        ValueError: it is no JSON, no UTF-8, or nested deeper than MAX_DEPTH.
    """
    try:
        value = json.loads(text, parse_constant=parse_constant, object_hook=object_hook)
    except RecursionError:
        raise ValueError(too_deep()) from None
    if is_too_deep(value):
        raise ValueError(too_deep())
    return value


def too_deep() -> str:
    """The words for it."""
    return f"nested deeper than {MAX_DEPTH} levels"


def is_too_deep(value: Any, max_depth: int = MAX_DEPTH) -> bool:
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
