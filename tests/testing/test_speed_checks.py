"""A regression is told, chance is not, and a damaged file is as none."""

from pathlib import Path
from typing import Any

import pytest

from infrastructure.testing.speed_checks import FILE, MOST_KEPT, Baselines, compare

WORK = {"model": "tiny", "device": "a CPU"}


def earlier(*seconds: float) -> list[dict[str, float]]:
    return [{"seconds_per_step": value} for value in seconds]


def test_the_first_measurement_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    assert Baselines(tmp_path / "cache").earlier(WORK) == []
    assert compare([], {"seconds_per_step": 1.0}) == []


def test_what_is_kept_is_found_by_its_work_alone(tmp_path: Path) -> None:
    baselines = Baselines(tmp_path / "cache")
    baselines.keep(WORK, {"seconds_per_step": 2.0}, {"versions": {"torch": "2"}})
    baselines.keep({**WORK, "device": "another"}, {"seconds_per_step": 9.0}, {})
    assert Baselines(tmp_path / "cache").earlier(WORK) == earlier(2.0)


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


def test_old_measurements_are_forgotten_and_all_on_request(tmp_path: Path) -> None:
    baselines = Baselines(tmp_path)
    for number in range(MOST_KEPT + 5):
        baselines.keep(WORK, {"seconds_per_step": 1.0 + number}, {})
    kept = baselines.earlier(WORK)
    assert len(kept) == MOST_KEPT
    assert kept[-1] == {"seconds_per_step": 1.0 + MOST_KEPT + 4}
    baselines.forget(WORK)
    assert baselines.earlier(WORK) == []


@pytest.mark.parametrize("value", ["[]", "3", '[{"numbers": {"a": 0}}]', '[{"a": 1}]', "[2]"])
def test_what_is_no_measurement_is_as_none(tmp_path: Path, value: str) -> None:
    (tmp_path / FILE).write_text(f'[{{"key": {{}}, "value": {value}}}]')
    baselines = Baselines(tmp_path)
    assert baselines.earlier({}) == []
    baselines.keep(WORK, {"seconds_per_step": 1.0}, {})
    assert baselines.earlier(WORK) == earlier(1.0)


def test_a_file_that_cannot_be_written_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    about: dict[str, Any] = {}
    Baselines(tmp_path / "cache").keep(WORK, {"seconds_per_step": 1.0}, about)
    assert "core.cache_not_written(what=the baseline, " in caplog.text
