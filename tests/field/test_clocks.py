"""Clocks and time zones that move back: which run is the newest, and what a report shows."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from infrastructure.monitoring.records.machine_history import MachineHistory, machine_charts
from infrastructure.monitoring.records.run_list import runs_in
from infrastructure.run.directory import find_run, plan_run
from tests.monitoring.written_run import sample

DAY_SECONDS = 86_400


@pytest.mark.parametrize(
    "moments",
    [
        [1e9, 1e9, 1e9, 1e9],  # one instant
        [1e9 + 86400, 1e9, 1e9 + 0.5, 1e9 - 40],  # the clock goes back a day
        [1e9, 1e9 + 0.25, 1e9 + 7200, 1e9 + 7199],
    ],
)
def test_f24_runs_are_in_the_order_in_which_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moments: list[float]
) -> None:
    made = []
    for name, moment in zip("dcab", moments, strict=True):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        run = plan_run(tmp_path, name).path
        run.mkdir()
        (run / "run.json").write_text("{}")
        made.append(run)
        assert runs_in(tmp_path) == made
        assert find_run(None, tmp_path)[0].path == run.resolve()
    assert len(set(made)) == 4


def test_f24_a_time_zone_that_moves_back_changes_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for name, zone in (("b", "UTC-9"), ("c", "UTC+7"), ("a", "UTC")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        run = plan_run(tmp_path, name).path
        run.mkdir()
        (run / "run.json").write_text("{}")
        made.append(run)
    monkeypatch.undo()
    time.tzset()
    assert runs_in(tmp_path) == made


@pytest.mark.parametrize(
    ("newest", "following"),
    [
        ("20371231-235959-a-00ff", "20371231-235959-b-0100"),
        ("20371231-235959-a-ffff", "20380101-000000-b-0000"),
        ("20371231-235959-a", "20371231-235959-b-0001"),
    ],
)
def test_f24_a_run_of_the_future_comes_before_a_new_one(
    tmp_path: Path, newest: str, following: str
) -> None:
    (tmp_path / newest / "checkpoints/versions").mkdir(parents=True)  # it has lost its run.json
    (tmp_path / "2039-notes").mkdir()
    (tmp_path / "2039-notes/run.json").write_text("{}")
    assert plan_run(tmp_path, "b").run_id == following


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """What the clock shows all through a test."""
    moment = time.time()
    monkeypatch.setattr(time, "time", lambda: moment)
    return moment


def test_f11_a_clock_that_goes_back_leaves_the_charts_in_order(now: float) -> None:
    history = MachineHistory()
    for seconds_ago in (900, 898, 896, DAY_SECONDS, DAY_SECONDS - 2, DAY_SECONDS - 60):
        history.add(sample(seconds_ago, cpu_percent=seconds_ago % 7 + 1.0))
        history.add_performance({"time": now - seconds_ago, "seconds_per_step": 2.0})
    assert not history.pauses  # 58 s between two samples are none
    moments = [moment for moment, _ in history.curves["cpu_percent"]]
    steps = [later - earlier for earlier, later in pairwise(moments)]
    assert steps == pytest.approx([2, 2, 0, 2, 58], abs=0.1)
    chart = machine_charts(history.curves)["cpu_percent"]
    assert chart.axis == "seconds"
    assert [x for x, _ in chart.points] == pytest.approx([0, 2, 4, 4, 6, 64], abs=0.1)


@pytest.mark.usefixtures("now")
def test_f11_a_clock_that_goes_forward_and_back_makes_a_pause_and_no_more() -> None:
    history = MachineHistory()
    for seconds_ago in (900, 898, 896 - DAY_SECONDS, 894 - DAY_SECONDS, 892, 890):
        history.add(sample(seconds_ago))
    assert len(history.pauses) == 1
    moments = [moment for moment, _ in history.curves["cpu_percent"]]
    assert moments[-1] - moments[0] == pytest.approx(6, abs=3)
    assert moments == sorted(moments)
