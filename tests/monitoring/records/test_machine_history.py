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
        ("processor", 0.5, "50%", "fine"),
        ("memory", 0.75, "6.0 of 8.0 GiB", "fine"),
        ("GPU 0", 0.97, "97% · 71 °C · 65 W", "fine"),
        ("GPU 0 memory", 14 / 15, "14.0 of 15.0 GiB", "high"),
    ]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        ({"memory_used_bytes": 2**29}, ("memory", 0.0625, "512.0 MiB of 8.0 GiB", "fine")),
        ({"memory_total_bytes": 0}, None),
        ({"memory_used_bytes": None}, None),
        ({"gpus": [{"utilization_percent": 250.0}]}, ("GPU", 1.0, "250%", "fine")),
        (
            {"gpus": [{"index": 3, "utilization_percent": 4.6, "power_watts": 9.6}]},
            ("GPU 3", 0.046, "5% · 10 W", "fine"),
        ),
    ],
)
def test_a_meter_shows_as_much_as_is_known(
    one: dict[str, Any], expected: tuple[object, ...] | None
) -> None:
    history = MachineHistory()
    history.add({**sample(0, gpus=[]), "cpu_percent": None, **one})
    shown = [tuple(meter.values()) for meter in history.meters()]
    assert shown[-1:] == ([] if expected is None else [expected])
    assert len(shown) == (expected is not None) + ("gpus" in one)


@pytest.mark.parametrize(
    ("key", "span", "largest", "title", "axis", "last", "units"),
    [
        ("gpu_memory_used_bytes#1", 7200, 3 * 2**30, "GPU memory, card 1, GiB", "hours", (2, 3), 0),
        ("process_memory_bytes", 7199, 2**30, "Memory of the run, GiB", "minutes", None, 0),
        ("disk_write_bytes_per_second", 300, 2**20, "Disk writes, MiB/s", "minutes", (5, 1), 1),
        ("network_sent_bytes_per_second", 299, 2**11, "Network, sent, KiB/s", "seconds", None, 1),
        ("network_received_bytes_per_second", 9, 5, "Network, received, B/s", "seconds", (9, 5), 1),
        ("gpu_temperature_celsius", 9, 5, "GPU temperature, °C", "seconds", (9, 5), 1),
        ("gpu_power_watts", 9, 5, "GPU power, W", "seconds", (9, 5), 1),
        ("model_flops_percent", 9, 5, "Share of peak FLOPS used (MFU), %", "seconds", (9, 5), 1),
    ],
)
def test_a_chart_has_the_units_of_its_span_and_of_its_largest_value(
    key: str,
    span: int,
    largest: float,
    title: str,
    axis: str,
    last: tuple[float, float] | None,
    units: int,
) -> None:
    points = [(1000.0, 0.5), (1000.0 + span, float(largest))]
    [(shown_key, chart)] = machine_charts({key: points, "cpu_percent": [(1.0, 0.0)]}).items()
    assert (shown_key, chart.title, chart.axis) == (key, title, axis)
    assert chart.x_unit == {"hours": 3600, "minutes": 60, "seconds": 1}[axis]
    assert chart.points[-1][0] * chart.x_unit == span
    assert chart.points[-1][1] * chart.y_unit == largest
    assert last in (None, chart.points[-1])
    assert (chart.from_zero, chart.is_noisy) == (True, bool(units))
    assert chart.format_value(1.23456) == "1.23"


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
        "CPU load, %",
        "Memory of the run, GiB",
        "Disk reads, MiB/s",
    ]
    cpu = charts["CPU load, %"]
    assert cpu.axis == "minutes"
    assert round(cpu.points[-1][0], 3) == 10.0
    assert charts["GPU memory, GiB"].points[0][1] == 14.0


def test_the_hours_between_a_kill_and_going_on_are_left_out() -> None:
    history = MachineHistory()
    hours = 5 * 3600
    for begin in (2 * hours, hours, 0):
        take(history, [sample(begin + ago) for ago in range(60, -1, -2)])
    assert [end - begin for begin, end in history.pauses] == [pytest.approx(hours - 60, abs=1)] * 2
    memory = next(chart for chart in charts_of(history) if chart.title == "GPU memory, GiB")
    assert memory.axis == "seconds"
    assert memory.points[-1][0] == pytest.approx(180, abs=2)  # of training
    steps = [b - a for (a, _), (b, _) in pairwise(memory.points)]
    assert max(steps) == pytest.approx(2, abs=1)


@pytest.mark.parametrize(
    ("interval", "gap", "num_pauses"),
    [(2, 60, 0), (2, 61, 1), (10, 100, 0), (10, 101, 1)],
    ids=["a minute", "longer than a minute", "ten intervals", "longer than ten intervals"],
)
def test_a_pause_is_longer_than_a_minute_and_than_ten_intervals(
    interval: int, gap: int, num_pauses: int
) -> None:
    history = MachineHistory()
    times = [0, interval, 2 * interval, 2 * interval + gap]
    take(history, [{**sample(0), "time": float(time)} for time in times])
    assert list(history.pauses) == [(times[-2], times[-1])] * num_pauses


def test_each_card_has_its_own_curve() -> None:
    history = MachineHistory()
    cards = [GPU, {**GPU, "index": 1, "utilization_percent": 12.0}]
    take(history, [sample(10, gpus=cards), sample(0, gpus=cards)])
    titles = [chart.title for chart in charts_of(history)]
    assert titles[:2] == ["GPU load, %", "GPU load, card 1, %"]
    assert [meter["text"] for meter in history.meters() if meter["name"] == "GPU 1"] == [
        "12% · 71 °C · 65 W"
    ]


def test_odd_samples_are_left_out_and_nothing_always_zero_is_drawn() -> None:
    history = MachineHistory()
    take(history, [{"cpu_percent": 1.0}, {"time": "x"}, sample(0, gpus="none", cpu_percent=0.0)])
    assert "CPU load, %" not in [chart.title for chart in charts_of(history)]
    assert [meter["name"] for meter in history.meters()] == ["processor", "memory"]
    assert len(history.points["cpu_percent"].kept) == 1


def test_a_clock_that_is_set_back_lets_no_curve_run_backwards() -> None:
    history = MachineHistory()
    first = sample(0)["time"]
    for moment in (0, 2, 4, -96, -94):
        history.add({**sample(0), "time": first + moment})
    times = [moment - first for moment, _ in history.points["gpu_memory_used_bytes"].kept]
    assert times == [0, 2, 4, 4, 6]


@pytest.mark.parametrize(
    ("used", "level"), [(85, "fine"), (86, "high"), (95, "high"), (96, "full"), (120, "full")]
)
def test_a_memory_that_is_nearly_full_looks_so(used: int, level: str) -> None:
    history = MachineHistory()
    sizes = {"memory_used_bytes": used << 30, "memory_total_bytes": 100 << 30}
    history.add({**sample(0), **sizes, "cpu_percent": 250.0})
    processor, memory = history.meters()[:2]
    assert (memory["level"], memory["share"]) == (level, min(1.0, used / 100))
    assert (processor["share"], processor["level"]) == (1.0, "fine")
