"""95% intervals of measured numbers, and of the difference between two models on the same rows.

Intervals come from resampling rows with replacement (Efron's percentile bootstrap) with a fixed
seed, so the same numbers give the same interval. For a share of correct answers, Wilson's interval
is used, which is also valid for shares of 0 and 1. McNemar's exact test decides whether one model
is right more often on the same rows. An interval shows how much the number would vary with other
rows of this kind; it does not cover the variation between training seeds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
Z = 1.959963984540054  # 95% of a normal distribution lie within so many deviations
_MAX_DRAWN = 4_000_000  # row indices in memory at once

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A number and its 95% interval; the ends are NaN if there are too few rows."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True if both ends are on the same side of zero."""
        return self.low > 0 or self.high < 0


def wilson(num_right: int, num_rows: int) -> Interval:
    """Return Wilson's 95% interval of a share (Wilson 1927, without continuity correction)."""
    if num_rows == 0:
        return Interval(math.nan, math.nan, math.nan)
    share, square = num_right / num_rows, Z * Z / num_rows
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / num_rows + square / 4 / num_rows)
    # With none right the interval starts at exactly 0, and with all right it ends at exactly 1;
    # rounding would leave 1e-18.
    low = 0.0 if num_right == 0 else max(0.0, middle - half)
    high = 1.0 if num_right == num_rows else min(1.0, middle + half)
    return Interval(share, low, high)


def bootstrap(sums: Floats, counts: Floats) -> Interval:
    """Return the 95% bootstrap interval of the ratio Σ sums / Σ counts.

    The ratio is a mean over tokens or, if all counts are 1, a mean over rows.

    Args:
        sums, counts: one value for each row, (rows,).
    """
    total = counts.sum()
    value = float(sums.sum() / total) if total else math.nan
    if len(sums) < 2 or not math.isfinite(value):
        return Interval(value, math.nan, math.nan)
    ratios = np.concatenate([_ratios(sums, counts, drawn) for drawn in _resamples(len(sums))])
    low, high = np.nanpercentile(ratios, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return Interval(value, float(low), float(high))


def paired_difference(first: Floats, second: Floats, counts: Floats) -> Interval:
    """Return the 95% interval of Σ(second - first) / Σ counts, resampling pairs of rows."""
    return bootstrap(second - first, counts)


def _ratios(sums: Floats, counts: Floats, drawn: npt.NDArray[np.int64]) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios: Floats = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return ratios


def _resamples(num_rows: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield bootstrap samples of row indices, (resamples, rows), in chunks; always the same."""
    random = np.random.default_rng(0)
    left = NUM_RESAMPLES
    while left:
        portion = min(left, max(1, _MAX_DRAWN // num_rows))
        yield random.integers(num_rows, size=(portion, num_rows))
        left -= portion


def mcnemar(num_only_first: int, num_only_second: int) -> float:
    """Return the p-value: the probability of such a difference between two equally good models.

    The test is exact and two-sided (McNemar 1947), and uses the rows that only one of the models
    got right.
    """
    num_different = num_only_first + num_only_second
    fewer = min(num_only_first, num_only_second)
    ways = sum(math.comb(num_different, k) for k in range(fewer + 1))
    return min(1.0, float(2 * ways / 2**num_different))
