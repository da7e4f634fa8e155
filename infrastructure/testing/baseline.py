"""Timings of earlier checks, kept in a cache file, and their comparison with today's timings.

A measurement is compared with earlier ones of the same work on the same machine. The median of the
earlier ones is the baseline, and their spread determines which differences are chance. A slow
measurement is not added to the baseline, so that a gradual slowdown is detected, too.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, TypeGuard

from infrastructure.core.json_cache import JsonCache, Key

FILE = "baselines.json"
MAX_MEASUREMENTS = 20
# A slowdown below this is never reported, nor one within this many deviations of earlier times.
MIN_SLOWDOWN = 0.25
NUM_DEVIATIONS = 4.0
TO_STANDARD_DEVIATION = 1.4826  # of the median absolute deviation, for normal noise

Numbers = dict[str, float]


class Measurement(TypedDict):
    """The times of one measurement; `about` is further information that is not compared."""

    time: float
    numbers: Numbers
    about: Mapping[str, object]


@dataclass(frozen=True)
class Comparison:
    """A time measured now, relative to the baseline.

    Attributes:
        baseline: the median of the earlier measurements.
        ratio: the current time divided by the baseline; above 1 is slower.
        allowed: the ratio above which the slowdown is no longer chance.
    """

    name: str
    baseline: float
    ratio: float
    allowed: float

    @property
    def is_slower(self) -> bool:
        return self.ratio > self.allowed


class Baselines:
    """The file of earlier measurements.

    Args:
        directory: the directory of the file; created when a measurement is added.
    """

    def __init__(self, directory: Path) -> None:
        self._kept = JsonCache(directory / FILE, "the baseline", _is_list_of_measurements)

    def earlier(self, key: Key) -> list[Numbers]:
        """Return the earlier measurements of this work, the oldest first."""
        return [taken["numbers"] for taken in self._kept.get(key) or []]

    def keep(self, key: Key, numbers: Numbers, about: Mapping[str, object]) -> None:
        """Add a measurement to the file. If the file cannot be written, this is only logged.

        Args:
            about: further information to store, such as versions, which is not compared.
        """
        taken: Measurement = {"time": time.time(), "numbers": numbers, "about": about}
        self._kept.put(key, [*(self._kept.get(key) or []), taken][-MAX_MEASUREMENTS:])

    def forget(self, key: Key) -> None:
        """Discard earlier measurements of this work; the next one becomes the baseline."""
        self._kept.forget(key)


def _is_list_of_measurements(value: object) -> TypeGuard[list[Measurement]]:
    return isinstance(value, list) and all(
        isinstance(taken, dict)
        and isinstance(taken.get("numbers"), dict)
        and all(isinstance(n, int | float) and n > 0 for n in taken["numbers"].values())
        for taken in value
    )


def compare(earlier: list[Numbers], numbers: Numbers) -> list[Comparison]:
    """Compare each time in `numbers` with its earlier values; times without earlier values are left
    out.
    """
    comparisons = []
    for name, value in numbers.items():
        before = [taken[name] for taken in earlier if name in taken]
        if not before:
            continue
        middle = statistics.median(before)
        apart = statistics.median(abs(one - middle) for one in before) / middle
        chance = max(MIN_SLOWDOWN, NUM_DEVIATIONS * TO_STANDARD_DEVIATION * apart)
        comparisons.append(Comparison(name, middle, value / middle, 1 + chance))
    return comparisons
