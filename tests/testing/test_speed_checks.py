"""A regression is told, chance is not, and a damaged file is as none."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.core.json_cache import JsonCache
from infrastructure.testing import speed_checks
from infrastructure.testing.speed_checks import (
    FILE,
    MOST_KEPT,
    SpeedComparison,
    check_speed,
    compare,
)

WORK = {"model": "tiny", "device": "a CPU"}
CACHE = SimpleNamespace(directory=None)
SUBJECT: Any = SimpleNamespace(trainer=SimpleNamespace(cache_config=CACHE))


def earlier(*seconds: float) -> list[dict[str, float]]:
    return [{"seconds_per_step": value} for value in seconds]


@pytest.mark.parametrize(
    ("before", "now", "is_slower"),
    [
        ((1.0,), 1.2, False),  # a quarter more is chance
        ((1.0,), 1.3, True),
        ((1.0, 1.01, 0.99), 1.3, True),
        ((1.0, 2.0, 1.5, 0.8, 1.2), 1.6, False),  # it has always been as different as that
        ((1.0, 2.0, 1.5, 0.8, 1.2), 4.0, True),
        ((1.0, 1.0, 50.0), 1.3, True),  # one slow measurement is no excuse for later ones
        ((1.0,), 0.3, False),
    ],
)
def test_slower_than_chance(before: tuple[float, ...], now: float, is_slower: bool) -> None:
    (found,) = compare(earlier(*before), {"seconds_per_step": now})
    assert found.is_slower is is_slower


def test_a_comparison_has_its_figures() -> None:
    taken = [{"a": 1.0, "b": 1.0}, {"a": 2.0}, {"a": 4.0}, {"c": 1.0}]
    allowed = 1 + 4 * 1.4826 * 0.5  # half of its median is how far apart they are
    assert compare(taken, {"a": 3.0, "b": 1.25, "d": 1.0}) == [
        SpeedComparison("a", 2.0, 1.5, pytest.approx(allowed)),
        SpeedComparison("b", 1.0, 1.25, 1.25),
    ]


@pytest.fixture
def cache(tmp_path: Path) -> JsonCache[Any]:
    return JsonCache(tmp_path / FILE, "the baseline", speed_checks._are_measurements)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """The steps that are measured, in seconds; another measure always takes 2."""
    steps: list[float] = []

    def measure(_: object) -> dict[str, float]:
        return {"seconds_per_step": steps.pop(0), "seconds_per_forward": 2.0}

    monkeypatch.setattr(speed_checks, "measure_times", measure)
    monkeypatch.setattr(speed_checks, "work_of", lambda _: WORK)
    monkeypatch.setattr(speed_checks, "cache_directory", lambda _: tmp_path)
    monkeypatch.setattr(speed_checks, "_num_tokens", lambda _: 60)
    return steps


def test_a_speed_is_compared_with_those_before(
    measured: list[float], cache: JsonCache[Any]
) -> None:
    found = []
    for steps in ([4.0], [5.0], [9.0, 8.5, 6.0], [20.0, 14.0, 12.0]):
        measured[:] = steps
        found.append(check_speed(SUBJECT))
        assert measured == []
    measured[:] = [20.0]
    found.append(check_speed(SUBJECT, rebaseline=True))
    speed = "testing.training_speed(tokens_per_second={}, num_tokens=60)"
    times = "{}, seconds_per_step {} x, seconds_per_forward 1.00 x"
    since = "testing.compared_with_baseline(num_earlier={})"
    slower = "testing.measure_slower(name=seconds_per_step, ratio=2.4, baseline=5.0, allowed="
    assert [(one.status, one.text.partition("allowed=")[0], one.remedy) for one in found] == [
        ("pass", speed.format(15.0) + "testing.kept_as_baseline()", ""),
        ("pass", times.format(speed.format(12.0), "1.25") + since.format(1), ""),
        ("pass", times.format(speed.format(10.0), "1.33") + since.format(2), ""),
        ("warn", slower.removesuffix("allowed="), "testing.slower_than_baseline()"),
        ("pass", speed.format(3.0) + "testing.kept_as_baseline()", ""),
    ]
    assert {(one.name, one.group) for one in found} == {("speed", "performance")}
    assert found[3].numbers == {
        "seconds_per_step": 12.0,
        "seconds_per_forward": 2.0,
        "tokens_per_second": 5.0,
    }
    assert cache.get(WORK) == [{"seconds_per_step": 20.0, "seconds_per_forward": 2.0}]


def test_the_fastest_repeat_after_two_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seconds = [0.0], iter([0.1, 0.2, 5.0, 4.0, 3.0, 4.0, 5.0])
    monkeypatch.setattr(speed_checks.time, "perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += next(seconds)

    subject: Any = SimpleNamespace(device=torch.device("cpu"))
    assert speed_checks._fastest(subject, work) == pytest.approx(3.0)
    assert next(seconds, None) is None


def test_old_measurements_are_forgotten(measured: list[float], cache: JsonCache[Any]) -> None:
    measured[:] = [1.0] * (MOST_KEPT + 5)
    while measured:
        check_speed(SUBJECT)
    assert cache.get(WORK) == [{"seconds_per_step": 1.0, "seconds_per_forward": 2.0}] * MOST_KEPT


@pytest.mark.parametrize("value", ["[]", "3", '[{"a": 0}]', '[{"a": "1"}]', "[2]"])
def test_what_is_no_measurement_is_as_none(
    measured: list[float], cache: JsonCache[Any], value: str
) -> None:
    cache.path.write_text(f'[{{"key": {json.dumps(WORK)}, "value": {value}}}]')
    measured[:] = [4.0]
    assert check_speed(SUBJECT).text.endswith("testing.kept_as_baseline()")
    assert cache.get(WORK) == [{"seconds_per_step": 4.0, "seconds_per_forward": 2.0}]
