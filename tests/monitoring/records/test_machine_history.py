"""What the monitor wrote of the machine becomes meters of now and curves over time."""

from itertools import pairwise
from typing import Any

import pytest

from infrastructure.monitoring.drawing.charts import Chart
from infrastructure.monitoring.records.machine_history import MachineHistory, machine_charts
from tests.monitoring.written_run import GPU, sample


def take(history: MachineHistory, samples: list[dict[str, Any]]) -> None:
    for one in samples:
        history.add(one)


def charts_of(history: MachineHistory) -> list[Chart]:
    return list(machine_charts(history.curves).values())


def test_meters_show_how_full_things_are_now() -> None:
    history = MachineHistory()
    take(history, [sample(10), sample(0)])
    assert [tuple(meter.values()) for meter in history.meters()] == [
        ("processor", 0.5, "50 %", "fine"),
        ("memory", 0.75, "6.0 of 8.0 GiB", "fine"),
        ("GPU 0", 0.97, "97 % · 71 °C · 65 W", "fine"),
        ("GPU 0 memory", 14 / 15, "14.0 of 15.0 GiB", "high"),
    ]


def test_curves_are_over_time_in_round_units() -> None:
    history = MachineHistory()
    take(
        history,
        [sample(seconds, cpu_percent=40.0 + seconds / 60) for seconds in range(600, -1, -5)],
    )
    charts = {chart.title: chart for chart in charts_of(history)}
    assert list(charts) == [
        "GPU load, %",
        "GPU memory, GiB",
        "GPU temperature, °C",
        "GPU power, W",
        "Processor load, %",
        "Memory of the training, GiB",
        "Disk, read, MiB/s",
    ]
    cpu = charts["Processor load, %"]
    assert cpu.axis == "minutes"
    assert round(cpu.curve.buckets[-1].step, 3) == 10.0
    assert charts["GPU memory, GiB"].curve.buckets[0].high == 14.0


def test_the_hours_between_a_kill_and_going_on_are_left_out() -> None:
    history = MachineHistory()
    hours = 5 * 3600
    take(history, [sample(hours + ago) for ago in range(120, -1, -2)])
    take(history, [sample(ago) for ago in range(120, -1, -2)])
    [(begin, end)] = history.pauses
    assert end - begin == pytest.approx(hours - 120, abs=1)
    memory = next(chart for chart in charts_of(history) if chart.title == "GPU memory, GiB")
    assert memory.axis == "seconds"
    assert memory.points[-1][0] == pytest.approx(240, abs=1)  # of training
    steps = [b - a for (a, _), (b, _) in pairwise(memory.points)]
    assert max(steps) == pytest.approx(2, abs=1)


def test_a_monitor_that_seldom_looks_has_no_pauses() -> None:
    history = MachineHistory()
    take(history, [sample(ago) for ago in range(6000, -1, -600)])
    assert not history.pauses


def test_each_card_has_its_own_curve() -> None:
    history = MachineHistory()
    cards = [GPU, {**GPU, "index": 1, "utilization_percent": 12.0}]
    take(history, [sample(10, gpus=cards), sample(0, gpus=cards)])
    titles = [chart.title for chart in charts_of(history)]
    assert titles[:2] == ["GPU load, %", "GPU load, card 1, %"]
    assert [meter["text"] for meter in history.meters() if meter["name"] == "GPU 1"] == [
        "12 % · 71 °C · 65 W"
    ]


def test_odd_samples_are_left_out_and_nothing_always_zero_is_drawn() -> None:
    history = MachineHistory()
    take(history, [{"cpu_percent": 1.0}, {"time": "x"}, sample(0, gpus="none", cpu_percent=0.0)])
    assert "Processor load, %" not in [chart.title for chart in charts_of(history)]
    assert [meter["name"] for meter in history.meters()] == ["processor", "memory"]
    assert len(history.points["cpu_percent"].kept) == 1
