"""The monitor: what it samples, writes and sums up, and what it bears."""

import itertools
import json
import logging
import math
import random
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core.gpu_readings import GpuReadings
from infrastructure.monitoring import training_monitor
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.monitoring.training_monitor import (
    ALERTS_FILE,
    HISTORY,
    PERFORMANCE_FILE,
    RECENT,
    SUMMARY_FILE,
    SYSTEM_FILE,
    Statistics,
    Table,
    TrainingMetrics,
    TrainingMonitor,
    Watcher,
)
from infrastructure.monitoring.watching.alerts import Alert
from tests.monitoring.scripted_machine import CALM_GPU, Moments, ScriptedGpus, ScriptedMachine

SAMPLE_OF_THE_SPECIFICATION = """
from infrastructure.monitoring.training_monitor import TrainingMonitor

# Initialize monitor
monitor = TrainingMonitor()
monitor.start_monitoring()

# Log training metrics
monitor.log_training_metrics(TrainingMetrics(
    timestamp=time.time(),
    epoch=1,
    step=100,
    loss=0.5,
    learning_rate=0.001,
    batch_size=32
))

# Get performance summary
summary = monitor.get_performance_summary()
"""


class Remembering:
    """A sink that keeps what it is sent."""

    name = "remembering"

    def __init__(self, fails: bool = False) -> None:
        self.alerts: list[Alert] = []
        self.num_calls, self.fails, self.is_closed = 0, fails, False

    def send(self, alert: Alert) -> None:
        self.num_calls += 1
        if self.fails:
            raise OSError("nobody there")
        self.alerts.append(alert)

    def close(self) -> None:
        self.is_closed = True


def metrics(step: int, **more: float) -> TrainingMetrics:
    return TrainingMetrics(1_000_000.0 + step, 0, step, 2.0, 0.001, 8, **more)


def scripted(directory: Path | None = None, **options: Any) -> TrainingMonitor:
    options = {"machine": ScriptedMachine(), "gpus": ScriptedGpus(), "clock": Moments()} | options
    return TrainingMonitor(directory, **options)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def test_the_lines_of_the_specification_run_as_written() -> None:
    names: dict[str, Any] = {"time": time, "TrainingMetrics": TrainingMetrics}
    exec(SAMPLE_OF_THE_SPECIFICATION, names)
    try:
        assert names["summary"]["step"] == 100
        assert names["summary"]["training"]["loss"]["last"] == 0.5
    finally:
        names["monitor"].stop_monitoring()


def test_a_thread_samples_this_machine_at_every_interval(tmp_path: Path) -> None:
    monitor = TrainingMonitor(tmp_path, interval_seconds=0.05, sinks=[])
    monitor.start_monitoring()
    wait_until(lambda: len(monitor.recent_samples) >= 3)
    monitor.stop_monitoring()
    records = read_metrics(tmp_path / SYSTEM_FILE)
    assert len(records) >= 4  # and a last one at the end
    assert {"time", "step", "cpu_percent", "process_memory_bytes", "gpus"} <= set(records[0])
    assert records[0]["process_memory_bytes"] > 1_000_000
    gaps = [b["time"] - a["time"] for a, b in itertools.pairwise(records[:-1])]
    assert statistics.median(gaps) >= 0.04  # a busy machine may make a sample late


class Following(Watcher):
    """A watcher that keeps the samples."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.monitor: TrainingMonitor | None = None

    def start(self, monitor: TrainingMonitor) -> None:
        self.monitor = monitor

    def sampled(self, sample: dict[str, Any]) -> None:
        self.seen.append(sample)

    def stop(self) -> None:
        self.monitor = None


class Failing(Following):
    def sampled(self, sample: dict[str, Any]) -> None:
        super().sampled(sample)
        raise RuntimeError("full")


def test_watchers_follow_from_the_start_to_the_stop(tmp_path: Path) -> None:
    """One that fails takes no more samples, and is stopped all the same."""
    fails, works = Failing(), Following()
    monitor = TrainingMonitor(tmp_path, interval_seconds=0.05, sinks=[], watchers=[fails, works])
    monitor.start_monitoring()
    assert fails.monitor is works.monitor is monitor
    wait_until(lambda: len(works.seen) >= 3)
    monitor.stop_monitoring()
    assert len(fails.seen) == 1
    assert works.seen[-1]["time"] == read_metrics(tmp_path / SYSTEM_FILE)[-1]["time"]
    assert fails.monitor is works.monitor is None


def test_a_sample_has_machine_gpus_and_probes(tmp_path: Path) -> None:
    watcher = Following()
    monitor = scripted(tmp_path, probes={"cache_bytes": lambda: 7.0}, watchers=[watcher])
    monitor.log_training_metrics(metrics(12))
    sample = monitor.sample()
    assert (sample["step"], sample["cpu_percent"], sample["cache_bytes"]) == (12, 20.0, 7.0)
    assert sample["memory_percent"] == 12.5
    assert sample["gpus"][0]["temperature_celsius"] == 60.0
    assert watcher.seen == [sample]
    assert read_metrics(tmp_path / SYSTEM_FILE) == [sample]
    monitor.stop_monitoring()


def test_each_logged_step_s_speed_is_written_once(tmp_path: Path) -> None:
    monitor = scripted(tmp_path)
    monitor.log_training_metrics(metrics(1, tokens_per_second=500.0))
    for _ in range(3):
        monitor.sample()
    assert read_metrics(tmp_path / PERFORMANCE_FILE) == [
        {  # without what was not measured, as the norm of the gradients
            **{"time": 1_000_001.0, "step": 1, "epoch": 0, "loss": 2.0, "learning_rate": 0.001},
            **{"batch_size": 8, "tokens_per_second": 500.0},
        }
    ]
    monitor.stop_monitoring()


def test_the_summary_is_of_all_samples(tmp_path: Path) -> None:
    machine, gpus = ScriptedMachine(), ScriptedGpus()
    monitor = scripted(tmp_path, machine=machine, gpus=gpus, sinks=[])
    for step, load in enumerate((10.0, 20.0, 60.0), start=1):
        machine.set(cpu_percent=load)
        gpus.set(power_watts=load)
        monitor.log_training_metrics(metrics(step, seconds_per_step=step / 10))
        monitor.sample()
    summary = monitor.get_performance_summary()
    assert summary["machine"]["cpu_percent"] == {
        "last": 60.0,
        "mean": 30.0,
        "min": 10.0,
        "max": 60.0,
        "p95": pytest.approx(56.0),
    }
    assert summary["gpus"][0]["power_watts"]["max"] == 60.0
    assert (summary["step"], summary["seconds"]) == (3, 0.0)
    assert summary["training"]["seconds_per_step"]["mean"] == pytest.approx(0.2)
    assert summary["alerts"] == {"raised": {}, "open": []}
    monitor.stop_monitoring()
    assert (tmp_path / SUMMARY_FILE).is_file()


def test_each_gpu_has_its_statistics_and_its_alerts(tmp_path: Path) -> None:
    gpus, clock, sink = ScriptedGpus(), Moments(), Remembering()
    hot = [replace(CALM_GPU, index=index, temperature_celsius=90.0 + index) for index in (1, 0)]
    gpus.now = hot
    monitor = scripted(tmp_path, gpus=gpus, clock=clock, sinks=[sink], interval_seconds=1000.0)
    monitor.start_monitoring()
    clock.now += 7.0
    for _ in range(2):
        monitor.sample()
    monitor.stop_monitoring()
    assert [(alert.subject, alert.value) for alert in sink.alerts] == [
        ("GPU 1 (Tesla T4)", 91.0),
        ("GPU 0 (Tesla T4)", 90.0),
    ]
    summary = json.loads((tmp_path / SUMMARY_FILE).read_text())
    assert [(gpu["index"], gpu["memory_percent"]["max"]) for gpu in summary["gpus"]] == [
        *((0, 25.0), (1, 25.0))
    ]
    assert (summary["seconds"], summary["alerts"]["raised"]) == (7.0, {"gpu_temperature": 2})
    assert not {"time", "step"} & {*summary["machine"]}


def test_the_first_sample_is_taken_soon_and_the_last_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_monitor, "FIRST_SECONDS", 0.01)
    monitor = scripted(interval_seconds=1000.0)
    assert monitor.latest() == ({}, None)
    monitor.start_monitoring()
    wait_until(lambda: bool(monitor.recent_samples))
    monitor.log_training_metrics(metrics(1))
    monitor.log_training_metrics(metrics(2))
    monitor.stop_monitoring()
    assert [sample["step"] for sample in monitor.recent_samples] == [0, 2]
    assert monitor.latest() == (monitor.recent_samples[1], metrics(2))


def test_a_reading_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reads, answers = threading.Event(), threading.Event()
    monkeypatch.setattr(training_monitor, "JOIN_SECONDS", 0.01)

    def hang() -> float:
        reads.set()
        answers.wait()
        return 1.0

    monitor = scripted(tmp_path, interval_seconds=0.01, probes={"hangs": hang})
    monitor.start_monitoring()
    thread = monitor._thread
    assert reads.wait(60)
    monitor.stop_monitoring()
    answers.set()
    assert thread is not None
    thread.join()
    assert caplog.messages == ["monitoring.monitor_not_responding()"]
    assert not (tmp_path / SUMMARY_FILE).exists()
    monitor.stop_monitoring()  # now that it answers
    assert (tmp_path / SUMMARY_FILE).exists()


def test_what_is_lost_is_reported_after_the_first_and_at_the_end(tmp_path: Path) -> None:
    away, other = Remembering(), Remembering()
    away.name, away.lost = "away", (0, "")  # type: ignore[attr-defined]
    monitor = scripted(tmp_path, sinks=[away, other], cooldown_seconds=0.0)
    for step, num_lost in enumerate((0, 2, 3)):
        monitor.log_training_metrics(metrics(step))
        away.lost = (num_lost, f"reason {num_lost}")  # type: ignore[attr-defined]
        monitor.sample()
    monitor.stop_monitoring()
    records = read_metrics(tmp_path / ALERTS_FILE)
    assert [Alert(**record) for record in records] == other.alerts
    assert away.alerts == []
    assert other.alerts == [
        Alert(
            *(1_000_000.0, step, "lost_alerts", "away", "raised", "warning", num_lost, 0),
            f"monitoring.alerts_not_delivered(count={num_lost}, sink=away,"
            f" reason=reason {num_lost}, alerts_file={ALERTS_FILE})",
        )
        for step, num_lost in ((1, 2), (2, 3))
    ]
    alerts = monitor.get_performance_summary()["alerts"]
    assert alerts == {"raised": {}, "open": [], "lost": {"away": 3}}


def test_an_alert_is_reported_at_once_and_written_with_its_end(tmp_path: Path) -> None:
    sink = Remembering()
    monitor = scripted(tmp_path, sinks=[sink], interval_seconds=1000.0)
    monitor.start_monitoring()
    monitor.log_training_metrics(metrics(5, gradient_norm=1e3))
    wait_until(lambda: bool(sink.alerts))  # long before the next sample
    assert monitor.get_performance_summary()["alerts"] == {
        "raised": {"gradient_norm": 1},
        "open": [{"rule": "gradient_norm", "subject": ""}],
    }
    monitor.log_training_metrics(metrics(6, gradient_norm=1.0))
    monitor.stop_monitoring()
    assert [alert.step for alert in sink.alerts] == [5]
    assert sink.is_closed
    written = read_metrics(tmp_path / ALERTS_FILE)
    assert [(r["step"], r["state"]) for r in written] == [(5, "raised"), (6, "ended")]


def test_a_sink_that_fails_is_reported_once_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Remembering(fails=True), Remembering()
    bad.name = "bad"
    monitor = scripted(sinks=[bad, good], cooldown_seconds=0.001)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 7):
            norm = 1e3 if step % 2 else 1.0
            monitor.log_training_metrics(metrics(step, gradient_norm=norm))
            monitor.sample()
    assert (bad.num_calls, len(good.alerts)) == (1, 3)
    assert len(caplog.messages) == 1
    assert "core.part_is_off(name=monitoring.alert_sink(name=bad), " in caplog.text


def test_a_probe_that_fails_is_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def broken() -> float:
        calls.append(1)
        raise RuntimeError("no such thing")

    monitor = scripted(probes={"broken": broken, "fine": lambda: 1.0})
    samples = [monitor.sample() for _ in range(3)]
    assert len(calls) == 1
    assert samples[-1]["fine"] == 1.0
    assert (
        caplog.text.count(
            "core.part_is_off(name=monitoring.probe(name=broken), error=no such thing)"
        )
        == 1
    )


def test_a_directory_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    monitor = scripted(tmp_path)
    monitor.log_training_metrics(metrics(1))
    for _ in range(3):
        monitor.sample()
    monitor.stop_monitoring()
    assert monitor.get_performance_summary()["machine"]["cpu_percent"]["mean"] == 20.0
    assert (
        caplog.text.count("core.part_is_off(name=monitoring.writing_file(file=system.jsonl), ") == 1
    )


def test_a_machine_without_gpus_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuReadings, "read", lambda self: [])
    monitor = TrainingMonitor()
    assert monitor.sample()["gpus"] == []
    assert monitor.get_performance_summary()["gpus"] == []


def test_it_can_be_stopped_and_started_again(tmp_path: Path) -> None:
    monitor = scripted(tmp_path, interval_seconds=0.05)
    for _ in range(2):
        monitor.start_monitoring()
        monitor.stop_monitoring()
    assert len(read_metrics(tmp_path / SYSTEM_FILE)) >= 2


def test_starting_twice_is_refused() -> None:
    monitor = scripted()
    monitor.start_monitoring()
    try:
        with pytest.raises(ValueError, match=r"monitoring\.monitor_already_started"):
            monitor.start_monitoring()
    finally:
        monitor.stop_monitoring()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_an_interval_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"monitoring\.interval_not_positive"):
        TrainingMonitor(interval_seconds=seconds)


def test_memory_does_not_grow_with_the_samples() -> None:
    monitor = scripted(sinks=[])

    def samples(number: int) -> None:
        for step in range(number):
            monitor.log_training_metrics(metrics(step, gradient_norm=float(step % 300)))
            monitor.sample()

    samples(2 * HISTORY)  # everything that is bounded is full now
    tracemalloc.start()
    try:
        samples(HISTORY)  # what the buffers hold is counted from here on
        before = tracemalloc.get_traced_memory()[0]
        samples(4 * HISTORY)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000
    assert len(monitor.recent_samples) == len(monitor.recent_metrics) == HISTORY


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
