import itertools
import math

from infrastructure.monitoring.drawing.downsampling import BoundedPoints, find_gaps

NAN = math.nan


def test_neighbouring_holes_of_one_kind_are_one_gap() -> None:
    values = [1.0, NAN, NAN, math.inf, 2.0, NAN]
    gaps = find_gaps(list(enumerate(values)))
    assert [(gap.name, gap.first_step, gap.last_step, gap.num_records) for gap in gaps] == [
        ("NaN", 1, 2, 2),
        ("Infinity", 3, 3, 1),
        ("NaN", 5, 5, 1),
    ]


def test_points_are_bounded_and_keep_every_extreme_and_every_gap() -> None:
    points = BoundedPoints(100)
    for step in range(10_000):
        special = {3333: 50.0, 4444: -50.0, 5555: math.nan}
        points.add(step, special.get(step, math.sin(step)))
    assert 50 <= len(points.kept) <= 100 + 64
    assert points.kept[-1] == (9_999, math.sin(9_999))
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


def test_groups_are_full_before_the_next_one_begins() -> None:
    """If the number of groups is even when they are combined, the last one is full."""
    points = BoundedPoints(6)
    kept = {}
    for step in range(14):
        points.add(step, step % 5)
        kept[step] = points.kept
    assert kept[4] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert kept[6] == [(0, 0), (3, 3), (4, 4), (5, 0), (6, 1)]
    assert kept[11] == [(0, 0), (3, 3), (4, 4), (5, 0), (9, 4), (10, 0), (11, 1)]
    assert kept[13] == [(0, 0), (4, 4), (9, 4), (10, 0), (13, 3)]


def test_few_points_are_all_kept() -> None:
    points = BoundedPoints(100)
    for step in range(50):
        points.add(step, float(step))
    assert points.kept == [(step, float(step)) for step in range(50)]
