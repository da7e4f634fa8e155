"""A small cache file of results, each stored with the inputs that determined it.

The cache only saves time: a file that is damaged or cannot be written is ignored.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeGuard, TypeVar

from infrastructure.core.files import write_json
from infrastructure.core.json_text import parse_json
from infrastructure.core.messages import phrase

MAX_ENTRIES = 200
MAX_BYTES = 4 << 20

log = logging.getLogger(__name__)

Key = Mapping[str, object]
Value = TypeVar("Value")


class JsonCache(Generic[Value]):
    """A cache of values by key. With more than `MAX_ENTRIES`, the oldest entries are dropped.

    Args:
        path: the file, which is created with its folder at the first `put`.
        what: a description of the values, for the warning if the file cannot be written.
        is_whole: a function that returns whether a value from the file is valid. Invalid values are
            ignored.
    """

    def __init__(
        self, path: Path, what: str, is_whole: Callable[[object], TypeGuard[Value]]
    ) -> None:
        self.path = path
        self._what = what
        self._is_whole = is_whole

    def get(self, key: Key) -> Value | None:
        """Return the value stored for this key; None if there is none."""
        return next((value for known, value in self._read() if known == key), None)

    def put(self, key: Key, value: Value) -> None:
        """Store a JSON value. If the file cannot be written, a warning is logged."""
        others = [(known, other) for known, other in self._read() if known != key]
        kept = [*others, (key, value)][-MAX_ENTRIES:]
        try:
            write_json(self.path, [{"key": key, "value": value} for key, value in kept])
        except OSError as error:
            log.warning(phrase("core.cache_not_written", what=self._what, error=error))

    def _read(self) -> list[tuple[Key, Value]]:
        try:
            if self.path.stat().st_size > MAX_BYTES:
                return []
            entries = parse_json(self.path.read_bytes())
        except (OSError, ValueError):
            return []
        return [
            (key, value)
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, dict)
            and isinstance(key := entry.get("key"), dict)
            and self._is_whole(value := entry.get("value"))
        ]
