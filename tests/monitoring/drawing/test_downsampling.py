import itertools
import math
import random

import pytest

from infrastructure.monitoring.drawing.downsampling import (
    BoundedPoints,
    find_gaps,
    linear_ticks,
    log_ticks,
    make_curve,
    smooth,
)

NAN = math.nan


def test_neighbouring_holes_of_one_kind_are_one_gap() -> None:
    values = [1.0, NAN, NAN, math.inf, 2.0, NAN]
    gaps = find_gaps(list(enumerate(values)))
    assert [(gap.name, gap.first_step, gap.last_step, gap.num_records) for gap in gaps] == [
        ("NaN", 1, 2, 2),
        ("Infinity", 3, 3, 1),
        ("NaN", 5, 5, 1),
    ]


def test_smoothing_does_not_lag_behind_a_falling_line() -> None:
    values = [100.0 - step for step in range(100)]
    middle = smooth(values, weight=0.8)[50]
    assert middle == pytest.approx(values[50], abs=0.01)


def test_smoothing_skips_what_is_not_finite() -> None:
    smoothed = smooth([1.0, NAN, 1.0, math.inf, 1.0], weight=0.5)
    assert smoothed == pytest.approx([1.0] * 5)


def test_downsampling_keeps_every_extreme() -> None:
    generator = random.Random(0)
    points = [(float(step), generator.random()) for step in range(100_000)]
    points[54_321] = (54_321.0, 50.0)
    points[12_345] = (12_345.0, -7.0)
    curve = make_curve(points, num_buckets=300)
    assert curve.is_downsampled
    assert len(curve.buckets) <= 301
    assert max(bucket.high for bucket in curve.buckets) == 50.0
    assert min(bucket.low for bucket in curve.buckets) == -7.0


def test_a_short_curve_is_drawn_as_it_is() -> None:
    curve = make_curve([(1, 3.0), (2, 2.0), (3, 5.0)])
    assert [bucket.smooth for bucket in curve.buckets] == [3.0, 2.0, 5.0]
    assert not curve.is_downsampled
    assert not curve.is_smoothed


def test_a_schedule_is_never_smoothed() -> None:
    points = [(float(step), 1.0 if step == 150 else 0.0) for step in range(300)]
    curve = make_curve(points, is_noisy=False)
    assert max(bucket.smooth for bucket in curve.buckets) == 1.0


def test_a_curve_breaks_at_a_gap() -> None:
    curve = make_curve([(1, 1.0), (2, NAN), (3, 3.0), (4, 4.0)])
    assert [[bucket.step for bucket in piece] for piece in curve.pieces] == [[1], [3, 4]]


def test_a_downsampled_curve_breaks_only_where_a_whole_bucket_is_empty() -> None:
    long_gap = range(400, 500)
    points = [
        (float(step), NAN if step in long_gap or step % 7 == 0 else 1.0) for step in range(1000)
    ]
    curve = make_curve(points, num_buckets=50)
    assert len(curve.pieces) == 2
    assert sum(gap.num_records for gap in curve.gaps) == sum(math.isnan(v) for _, v in points)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (3, 3, [3]), (0, 250, [0, 50, 100, 150, 200, 250])],
)
def test_linear_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert linear_ticks(low, high) == pytest.approx(ticks)


def test_log_ticks_are_inside_and_few() -> None:
    for low, high in ((0.05, 6.0), (1e-9, 1e9), (2.0, 70.0)):
        ticks = log_ticks(low, high)
        assert 2 <= len(ticks) <= 9
        assert all(low <= tick <= high for tick in ticks)


def test_points_are_bounded_and_keep_every_extreme_and_every_gap() -> None:
    points = BoundedPoints(100)
    for step in range(10_000):
        special = {3333: 50.0, 4444: -50.0, 5555: math.nan}
        points.add(step, special.get(step, math.sin(step)))
    assert points.num_added == 10_000
    assert 50 <= len(points.kept) <= 100 + 64
    assert points.kept[-1] == (9_999, points.last)
    steps = [step for step, _ in points.kept]
    assert steps == sorted(steps)
    assert {3333, 4444, 5555} <= set(steps)


def test_no_stretch_is_drawn_with_less_detail_than_another() -> None:
    points = BoundedPoints(100)
    for step in range(7_000):
        points.add(step, math.sin(step))
    steps = [step for step, _ in points.kept if step < 26 * 256]  # of groups that are full
    assert max(after - before for before, after in itertools.pairwise(steps)) < 2 * 256
    thirds = [sum(low <= step < low + 2000 for step in steps) for low in (0, 2000, 4000)]
    assert max(thirds) - min(thirds) <= 2


def test_few_points_are_all_kept() -> None:
    points = BoundedPoints(100)
    for step in range(50):
        points.add(step, float(step))
    assert points.kept == [(step, float(step)) for step in range(50)]


def test_a_curve_of_thinned_points_has_the_same_envelope() -> None:
    points = BoundedPoints(400)
    whole = [(float(step), math.sin(step / 50)) for step in range(5000)]
    for point in whole:
        points.add(*point)
    for curve in (make_curve(whole, 50), make_curve(points.kept, 50)):
        assert max(bucket.high for bucket in curve.buckets) == max(value for _, value in whole)
        assert min(bucket.low for bucket in curve.buckets) == min(value for _, value in whole)
