"""Intervals against scipy where it is installed, and against what is known by hand."""

import math

import numpy as np
import pytest

from infrastructure.evaluation import intervals
from infrastructure.evaluation.intervals import (
    Interval,
    bootstrap,
    mcnemar,
    paired_difference,
    wilson,
)

scipy_stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize(("right", "rows"), [(0, 12), (7, 30), (30, 30), (481, 1000)])
def test_a_share_has_wilsons_interval(right: int, rows: int) -> None:
    interval = wilson(right, rows)
    expected = scipy_stats.binomtest(right, rows).proportion_ci(method="wilson")
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert interval.value == right / rows


def test_a_share_of_none_or_all_ends_there_exactly() -> None:
    for rows in range(1, 400):
        assert wilson(0, rows).low == 0.0
        assert wilson(rows, rows).high == 1.0


def test_a_mean_over_tokens_is_drawn_by_rows() -> None:
    random = np.random.default_rng(1)
    counts = random.integers(1, 20, 200).astype(float)
    sums = counts * random.normal(2.0, 0.5, 200)
    interval = bootstrap(sums, counts)

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return a.sum(axis=axis) / b.sum(axis=axis)

    expected = scipy_stats.bootstrap(
        (sums, counts), ratio, paired=True, method="percentile", n_resamples=5000, rng=2
    ).confidence_interval
    assert interval.value == sums.sum() / counts.sum()
    assert interval.low == pytest.approx(expected.low, abs=0.015)
    assert interval.high == pytest.approx(expected.high, abs=0.015)
    assert interval == bootstrap(sums, counts)


@pytest.mark.parametrize("num_rows", [150, 1000])
def test_means_of_two_and_a_half_percent_lie_beyond_each_end(num_rows: int) -> None:
    """As of a mean of normal numbers, whose interval is known; one of 90% is a sixth shorter."""
    values = np.random.default_rng(5).normal(3.0, 2.0, num_rows)
    half = 1.96 * values.std() / math.sqrt(num_rows)
    for interval, middle in (
        (bootstrap(values, np.ones(num_rows)), values.mean()),
        (bootstrap(values * 4, np.full(num_rows, 4.0)), values.mean()),
        (paired_difference(values, np.zeros(num_rows), np.ones(num_rows)), -values.mean()),
    ):
        assert interval.value == pytest.approx(middle)
        assert (interval.low - middle) / half == pytest.approx(-1, abs=0.07)
        assert (interval.high - middle) / half == pytest.approx(1, abs=0.07)


@pytest.mark.parametrize("most_drawn", [150, 700])
def test_more_rows_than_are_drawn_at_one_time_have_the_same_interval(
    most_drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 rows: fewer than one resample at a time, and portions that do not come out even."""
    random = np.random.default_rng(4)
    counts = random.integers(1, 20, 200).astype(float)
    sums = counts * random.normal(2.0, 0.5, 200)
    whole = bootstrap(sums, counts)
    monkeypatch.setattr(intervals, "_MAX_DRAWN", most_drawn)
    assert bootstrap(sums, counts) == whole


def test_one_row_has_no_interval() -> None:
    interval = bootstrap(np.ones(1), np.ones(1))
    assert interval.value == 1
    assert math.isnan(interval.low)
    assert not interval.excludes_zero


def test_pairs_show_what_single_intervals_cannot() -> None:
    random = np.random.default_rng(3)
    first = random.normal(0, 10, 300)
    second = first + 0.1 + random.normal(0, 0.05, 300)
    ones = np.ones(300)
    assert paired_difference(first, second, ones).excludes_zero
    assert not bootstrap(second, ones).low > bootstrap(first, ones).high


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 5), (2, 11), (40, 17)])
def test_mcnemar_is_the_exact_binomial_test(first: int, second: int) -> None:
    total = first + second
    expected = 1.0 if total == 0 else scipy_stats.binomtest(first, total).pvalue
    assert mcnemar(first, second) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "excludes"),
    [
        *[(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False)],
        *[(0.0, 0.2, False), (-0.2, 0.0, False), (math.nan, math.nan, False)],
    ],
)
def test_zero_is_excluded_by_both_ends(low: float, high: float, excludes: bool) -> None:
    assert Interval(0.0, low, high).excludes_zero is excludes


def test_what_was_not_measured_has_no_interval() -> None:
    nothing = [wilson(0, 0), bootstrap(np.zeros(3), np.zeros(3)), bootstrap(np.ones(0), np.ones(0))]
    nothing.append(bootstrap(np.array([1.0, math.inf]), np.ones(2)))
    for interval in nothing:
        assert not math.isfinite(interval.value)
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)
    two = bootstrap(np.array([1.0, 3.0]), np.ones(2))
    assert (two.value, two.low, two.high) == (2.0, 1.0, 3.0)
    sparse = bootstrap(np.array([1.0, 0.0, 3.0]), np.array([1.0, 0.0, 1.0]))
    assert (sparse.value, sparse.low, sparse.high) == (2.0, 1.0, 3.0), "empty rows are passed over"
