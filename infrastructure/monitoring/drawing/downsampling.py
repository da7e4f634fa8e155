"""Reduction of curves to few points, without losing spikes: buckets, smoothing, gaps.

Downsampling keeps the smallest and the largest value of every bucket, so no spike disappears.
Values that are not finite are never dropped silently: `find_gaps` reports their positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from infrastructure.monitoring.drawing.formatting import not_finite_name

Points = list[tuple[float, float]]

NUM_BUCKETS = 360
MAX_OPEN_POINTS = 64  # in a group that is not full yet, before it is thinned


@dataclass(frozen=True)
class Gap:
    """A series of consecutive records whose values are NaN or infinite."""

    first_step: float
    last_step: float
    num_records: int
    name: str


@dataclass
class Bucket:
    """The finite values in one interval of the step axis."""

    step: float
    low: float
    high: float
    smooth: float


@dataclass
class Curve:
    """The values of one quantity over the steps, prepared for drawing.

    Attributes:
        pieces: the pieces between gaps, each a list of buckets in the order of the steps.
        is_downsampled: whether several records fell into one bucket.
        is_smoothed: whether `Bucket.smooth` is an average. In a short curve it is the value itself.
    """

    pieces: list[list[Bucket]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    is_downsampled: bool = False
    is_smoothed: bool = False

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for piece in self.pieces for bucket in piece]


class BoundedPoints:
    """The points of a growing curve, condensed so that they need a bounded amount of memory.

    Neighboring points are combined into groups of equal size, which doubles when there are too many
    groups. A group keeps its lowest, its highest and its first value that is not finite. So no
    spike and no gap disappears, and all parts have the same level of detail.

    Args:
        max_kept: the approximate number of points to keep.

    Attributes:
        num_added: the number of points added.
        last: the newest value.
    """

    def __init__(self, max_kept: int) -> None:
        self.max_groups = max(2, max_kept // 2)
        self.num_added = 0
        self.last = math.nan
        self._newest: Points = []
        self._groups: list[Points] = []
        self._group_size = 1
        self._num_in_last = 0

    def add(self, position: float, value: float) -> None:
        """Add the next point. Points must be added in the order of their positions."""
        self.num_added += 1
        self.last, self._newest = value, [(position, value)]
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
        """The remaining points, in order. The newest one is always among them."""
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
    """Return the lowest, the highest and the first non-finite point, in order."""
    finite = [index for index, (_, value) in enumerate(points) if math.isfinite(value)]
    odd = [index for index, (_, value) in enumerate(points) if not math.isfinite(value)]
    chosen = set(odd[:1])
    if finite:
        chosen |= {pick(finite, key=lambda index: points[index][1]) for pick in (min, max)}
    return [points[index] for index in sorted(chosen)]


def find_gaps(points: Points) -> list[Gap]:
    """Return the gaps: each series of consecutive records that are NaN or infinite, in order."""
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


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Return the mean of two debiased exponential moving averages, one from each end.

    An average only from the start, as TensorBoard draws it, lags behind a falling curve. Values
    that are not finite are skipped.

    Args:
        values: the values in the order of the steps.
        weight: the weight of the average: 0 follows every value, and values closer to 1 smooth
            more.
    """
    forward = _moving_average(values, weight)
    backward = _moving_average(values[::-1], weight)[::-1]
    return [(one + other) / 2 for one, other in zip(forward, backward, strict=True)]


def _moving_average(values: Sequence[float], weight: float) -> list[float]:
    averages, average, total_weight = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            average = weight * average + (1 - weight) * value
            total_weight = weight * total_weight + (1 - weight)
        averages.append(average / total_weight if total_weight else math.nan)
    return averages


def smoothing_weight(num_values: int) -> float:
    """Return the weight that averages over about 1/100 of the curve, or 0 for a short curve."""
    span = num_values / 100
    return max(0.0, 1 - 1 / span) if span > 1 else 0.0


def make_curve(points: Points, num_buckets: int = NUM_BUCKETS, is_noisy: bool = True) -> Curve:
    """Condense `points` (step, value) into at most `num_buckets` intervals of equal width in steps.

    A noisy quantity is averaged; others, such as a learning rate, are drawn as they are. A curve
    breaks where values are not finite. A downsampled curve breaks only at a bucket without any
    finite value; shorter gaps are only in `gaps`.
    """
    points = sorted(points, key=lambda point: point[0])
    weight = smoothing_weight(len(points)) if is_noisy else 0.0
    values = [value for _, value in points]
    smoothed = smooth(values, weight) if weight else values
    curve = Curve([], find_gaps(points), len(points) > num_buckets, weight > 0)
    width = max(points[-1][0] - points[0][0], 1e-9) / num_buckets if points else 1.0
    last_index, is_broken = -1, True
    for record, ((step, value), average) in enumerate(zip(points, smoothed, strict=True)):
        index = int((step - points[0][0]) / width) if curve.is_downsampled else record
        if not math.isfinite(value):
            is_broken = is_broken or index > last_index + 1 or not curve.is_downsampled
            continue
        if is_broken:
            curve.pieces.append([])
        if index == last_index and not is_broken:
            _add_to(curve.pieces[-1][-1], step, value, average)
        else:
            curve.pieces[-1].append(Bucket(step, value, value, average))
        last_index, is_broken = index, False
    return curve


def _add_to(bucket: Bucket, step: float, value: float, average: float) -> None:
    bucket.low, bucket.high = min(bucket.low, value), max(bucket.high, value)
    bucket.step, bucket.smooth = step, average


def linear_ticks(low: float, high: float, num_ticks: int = 5) -> list[float]:
    """Return round numbers (1, 2, 2.5 or 5 times a power of ten) in [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / num_ticks
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten in [low, high], with intermediate ticks if there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(exponents) <= 3 else (1, 3) if len(exponents) <= 4 else (1,)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    every = math.ceil(len(ticks) / 9)
    return [tick for tick in ticks[::every] if low <= tick <= high]
