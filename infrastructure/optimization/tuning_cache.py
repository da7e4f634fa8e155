"""What was measured once, kept for the next training like it, in a small file of the cache.

What is remembered only saves time: a file that is damaged or cannot be written is passed over.
"""

import json
import logging
from pathlib import Path
from typing import Any

from infrastructure.core.files import write_json

FILE = "tuning.json"
MAX_ENTRIES = 200
MAX_BYTES = 4 << 20

log = logging.getLogger(__name__)

Key = dict[str, Any]


class TuningCache:
    """Results by what decides them: hardware, versions, model, length, and what is measured.

    Args:
        directory: where the file lies; made when something is remembered.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    def get(self, key: Key) -> dict[str, Any] | None:
        """What was measured for exactly this key; None: nothing."""
        return next((result for known, result in self._read() if known == key), None)

    def put(self, key: Key, result: dict[str, Any]) -> None:
        """Keep a result (JSON values); of many the oldest are forgotten."""
        others = [(known, old) for known, old in self._read() if known != key]
        kept = [*others, (key, result)][-MAX_ENTRIES:]
        try:
            write_json(self.path, [{"key": known, "result": found} for known, found in kept])
        except OSError as error:
            log.warning("what was measured is not remembered: %s", error)

    def _read(self) -> list[tuple[Key, dict[str, Any]]]:
        try:
            if self.path.stat().st_size > MAX_BYTES:
                return []
            entries = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return []
        entries = entries if isinstance(entries, list) else []
        return [
            (entry["key"], entry["result"])
            for entry in entries
            if isinstance(entry, dict)
            and isinstance(entry.get("key"), dict)
            and isinstance(entry.get("result"), dict)
        ]
