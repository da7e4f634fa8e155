"""What the monitor wrote of the machine becomes meters of now and curves over time."""

from infrastructure.monitoring.records.machine_history import MachineHistory, Meter
from tests.monitoring.written_run import GPU, sample


def test_meters_show_how_full_things_are_now() -> None:
    history = MachineHistory()
    history.add([sample(10), sample(0)])
    assert history.meters() == [
        Meter("processor", 0.5, "50 %", True),
        Meter("memory", 0.75, "6.0 of 8.0 GiB", False),
        Meter("GPU 0", 0.97, "97 % · 71 °C · 65 W", True),
        Meter("GPU 0 memory", 14 / 15, "14.0 of 15.0 GiB", False),
    ]
    assert [meter.level for meter in history.meters()] == ["fine", "fine", "fine", "high"]


def test_curves_are_over_time_in_round_units() -> None:
    history = MachineHistory()
    history.add(
        [sample(seconds, cpu_percent=40.0 + seconds / 60) for seconds in range(600, -1, -5)]
    )
    charts = {chart.title: chart for _, chart, _ in history.charts()}
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


def test_each_card_has_its_own_curve() -> None:
    history = MachineHistory()
    cards = [GPU, {**GPU, "index": 1, "utilization_percent": 12.0}]
    history.add([sample(10, gpus=cards), sample(0, gpus=cards)])
    titles = [chart.title for _, chart, _ in history.charts()]
    assert titles[:2] == ["GPU load, %", "GPU load, card 1, %"]
    assert [meter.text for meter in history.meters() if meter.name == "GPU 1"] == [
        "12 % · 71 °C · 65 W"
    ]


def test_odd_samples_are_left_out_and_nothing_always_zero_is_drawn() -> None:
    history = MachineHistory()
    history.add([{"cpu_percent": 1.0}, {"time": "x"}, sample(0, gpus="none", cpu_percent=0.0)])
    assert "Processor load, %" not in [chart.title for _, chart, _ in history.charts()]
    assert [meter.name for meter in history.meters()] == ["processor", "memory"]
    assert len(history.points["cpu_percent"].kept) == 1
