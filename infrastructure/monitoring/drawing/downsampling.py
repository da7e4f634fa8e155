"""Curves in bounded memory, and the places where their values are not finite.

Reducing the number of points keeps the smallest and the largest value of every group, so no spike
disappears. Values that are not finite are never dropped silently: `find_gaps` reports their
positions.
"""

import math
from dataclasses import dataclass

from infrastructure.monitoring.drawing.formatting import not_finite_name

Points = list[tuple[float, float]]

MAX_OPEN_POINTS = 64  # in a group that is not full yet, before it is thinned


@dataclass(frozen=True)
class Gap:
    """A series of consecutive records whose values are NaN or infinite."""

    first_step: float
    last_step: float
    num_records: int
    name: str


class BoundedPoints:
    """The points of a growing curve, condensed so that they need a bounded amount of memory.

    Neighboring points are combined into groups of equal size, which doubles when there are too many
    groups. A group keeps its lowest, its highest and its first value that is not finite. So no
    spike and no gap disappears, and all parts have the same level of detail.

    Args:
        max_kept: the approximate number of points to keep.
    """

    def __init__(self, max_kept: int) -> None:
        self.max_groups = max(2, max_kept // 2)
        self._newest: Points = []
        self._groups: list[Points] = []
        self._group_size = 1
        self._num_in_last = 0

    def add(self, position: float, value: float) -> None:
        """Add the next point. Points must be added in the order of their positions."""
        self._newest = [(position, value)]
        if self._groups and self._num_in_last < self._group_size:
            self._groups[-1].append((position, value))
            self._num_in_last += 1
            if self._num_in_last == self._group_size or len(self._groups[-1]) == MAX_OPEN_POINTS:
                self._groups[-1] = _extremes(self._groups[-1])
            return
        self._groups.append([(position, value)])
        self._num_in_last = 1
        if len(self._groups) > self.max_groups:
            self._halve()

    @property
    def kept(self) -> Points:
        """The remaining points, in order, always including the newest point."""
        points = [point for group in self._groups for point in group]
        return points if points[-1:] == self._newest else points + self._newest

    def _halve(self) -> None:
        groups = self._groups
        pairs = (groups[i : i + 2] for i in range(0, len(groups), 2))
        if len(groups) % 2 == 0:
            self._num_in_last += self._group_size
        self._groups = [_extremes([point for group in pair for point in group]) for pair in pairs]
        self._group_size *= 2


def _extremes(points: Points) -> Points:
    """Return the lowest, the highest and the first non-finite point, in their original order."""
    finite = [index for index, (_, value) in enumerate(points) if math.isfinite(value)]
    odd = [index for index, (_, value) in enumerate(points) if not math.isfinite(value)]
    chosen = set(odd[:1])
    if finite:
        chosen |= {pick(finite, key=lambda index: points[index][1]) for pick in (min, max)}
    return [points[index] for index in sorted(chosen)]


def find_gaps(points: Points) -> list[Gap]:
    """Return the gaps in a curve, in order: series of consecutive points that are NaN or
    infinite.
    """
    gaps: list[Gap] = []
    was_finite = True
    for step, value in points:
        if math.isfinite(value):
            was_finite = True
            continue
        name = not_finite_name(value) or ""
        if not was_finite and gaps[-1].name == name:
            gaps[-1] = Gap(gaps[-1].first_step, step, gaps[-1].num_records + 1, name)
        else:
            gaps.append(Gap(step, step, 1, name))
        was_finite = False
    return gaps
