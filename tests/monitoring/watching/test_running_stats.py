"""Statistics of a stream against those of the whole list."""

import math
import random
import statistics

import pytest

from infrastructure.monitoring.watching.running_stats import RECENT, Statistics, Table


def test_they_are_those_of_all_values() -> None:
    numbers = random.Random(0)
    values = [numbers.uniform(-5, 5) for _ in range(RECENT)]
    found = Statistics()
    for value in values:
        found.add(value)
    assert found.to_dict() == {
        "last": values[-1],
        "mean": pytest.approx(statistics.fmean(values)),
        "min": min(values),
        "max": max(values),
        "p95": pytest.approx(statistics.quantiles(values, n=100, method="inclusive")[94]),
    }


def test_the_percentile_is_of_recent_values() -> None:
    found = Statistics()
    for value in [1000.0] * 10 + [1.0] * RECENT:
        found.add(value)
    assert found.to_dict()["p95"] == 1.0
    assert found.to_dict()["max"] == 1000.0
    assert len(found.recent) == RECENT


def test_what_is_no_number_is_left_out() -> None:
    found = Statistics()
    for value in (math.nan, math.inf, 2.0):
        found.add(value)
    assert found.count == 1
    assert found.to_dict()["mean"] == 2.0


def test_nothing_comes_to_nothing() -> None:
    table = Table()
    table.add({"name": "T4", "is_on": True, "missing": None, "bad": math.nan})
    assert table.to_dict() == {}
