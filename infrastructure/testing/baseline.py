"""Timings of earlier checks, kept in a file of the cache, and whether today's are slower.

A measurement is compared with those of the same work on the same machine. The middle one of the
earlier ones counts, and how far they lie apart says what is chance. A slow one is not taken into
the baseline, so that becoming slower little by little shows too.
"""

import json
import logging
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrastructure.core.files import write_json

FILE = "baselines.json"
MAX_ENTRIES = 100
MAX_MEASUREMENTS = 20
MAX_BYTES = 4 << 20
# Slower by less than this is never told, nor by less than so many deviations of what was before.
MIN_SLOWDOWN = 0.25
NUM_DEVIATIONS = 4.0
TO_STANDARD_DEVIATION = 1.4826  # of the median absolute deviation, for normal noise

log = logging.getLogger(__name__)

Numbers = dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """Today's time in units of the baseline's.

    Attributes:
        baseline: the middle of the earlier measurements.
        ratio: today's over the baseline; above 1 is slower.
        allowed: the ratio from which on it is no chance any more.
    """

    name: str
    baseline: float
    ratio: float
    allowed: float

    @property
    def is_slower(self) -> bool:
        return self.ratio > self.allowed


class Baselines:
    """The earlier measurements.

    Args:
        directory: where the file lies; made when something is kept.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    def earlier(self, key: dict[str, Any]) -> list[Numbers]:
        """What was measured before of the work `key`, the oldest first."""
        entry = next((e for e in self._read() if e["key"] == key), None)
        return [] if entry is None else [m["numbers"] for m in entry["measurements"]]

    def keep(self, key: dict[str, Any], numbers: Numbers, about: dict[str, Any]) -> None:
        """Add a measurement; a file that cannot be written is only told.

        Args:
            about: what is worth knowing of it later, such as versions, and is not compared.
        """
        entries = self._read()
        entry = next((e for e in entries if e["key"] == key), {"key": key, "measurements": []})
        taken = {"time": time.time(), "numbers": numbers, "about": about}
        entry["measurements"] = [*entry["measurements"], taken][-MAX_MEASUREMENTS:]
        others = [e for e in entries if e["key"] != key]
        self._write([*others, entry])

    def forget(self, key: dict[str, Any]) -> None:
        """Let the next measurement of the work `key` be its baseline."""
        self._write([e for e in self._read() if e["key"] != key])

    def _write(self, entries: list[dict[str, Any]]) -> None:
        try:
            write_json(self.path, entries[-MAX_ENTRIES:])
        except OSError as error:
            log.warning("the baseline is not kept: %s", error)

    def _read(self) -> list[dict[str, Any]]:
        """What is whole of the file; a damaged one is as none."""
        try:
            if self.path.stat().st_size > MAX_BYTES:
                return []
            entries = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return []
        return [e for e in entries if _is_entry(e)] if isinstance(entries, list) else []


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), dict):
        return False
    taken = entry.get("measurements")
    return isinstance(taken, list) and all(
        isinstance(m, dict)
        and isinstance(m.get("numbers"), dict)
        and all(isinstance(v, int | float) and v > 0 for v in m["numbers"].values())
        for m in taken
    )


def compare(earlier: list[Numbers], numbers: Numbers) -> list[Comparison]:
    """Each time of `numbers` with what it was earlier; those that are new are left out."""
    found = []
    for name, value in numbers.items():
        before = [taken[name] for taken in earlier if name in taken]
        if not before:
            continue
        middle = statistics.median(before)
        apart = statistics.median(abs(one - middle) for one in before) / middle
        chance = max(MIN_SLOWDOWN, NUM_DEVIATIONS * TO_STANDARD_DEVIATION * apart)
        found.append(Comparison(name, middle, value / middle, 1 + chance))
    return found
