"""Statistics over a stream of numbers, in a fixed amount of memory."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import quantiles

RECENT = 256  # number of values for the percentile


@dataclass
class Statistics:
    """The count, mean, minimum, maximum and last of all values, and the recent 95th percentile.

    Values that are not finite are left out.
    """

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    largest: float = -math.inf
    newest: float = math.nan
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            return
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.largest = max(self.largest, value)
        self.newest = value
        self.recent.append(value)

    def to_dict(self) -> dict[str, float]:
        """Return last, mean, min, max and p95 by name; empty before the first value."""
        if not self.count:
            return {}
        return {
            "last": self.newest,
            "mean": self.total / self.count,
            "min": self.least,
            "max": self.largest,
            "p95": percentile_95(list(self.recent)),
        }


def percentile_95(values: list[float]) -> float:
    """Return the 95th percentile of the values, interpolated linearly."""
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


class Table:
    """Statistics for several quantities, by name.

    The names come from the code, so there are few.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Statistics] = {}

    def add(self, values: Mapping[str, object]) -> None:
        """Add each value that is a number."""
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._by_name.setdefault(name, Statistics()).add(value)

    def to_dict(self) -> dict[str, dict[str, float]]:
        return {name: values for name, s in self._by_name.items() if (values := s.to_dict())}
