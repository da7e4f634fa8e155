"""The section on the machine, from the files that a real monitor writes."""

import json
from pathlib import Path

import pytest

from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.report.report import write_report
from infrastructure.monitoring.report.report_machine import machine_figures, machine_use
from infrastructure.monitoring.training_monitor import (
    SYSTEM_FILE,
    TrainingMetrics,
    TrainingMonitor,
)
from tests.monitoring.scripted_machine import GIB, Moments, ScriptedGpus, ScriptedMachine


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was watched for twenty samples, with one hot GPU."""
    machine, gpus = ScriptedMachine(), ScriptedGpus()
    monitor = TrainingMonitor(tmp_path, sinks=[], machine=machine, gpus=gpus, clock=Moments())
    for step in range(1, 21):
        machine.set(cpu_percent=2.0 * step, process_memory_bytes=step * GIB // 10)
        gpus.set(temperature_celsius=70.0 + step)
        monitor.log_training_metrics(
            TrainingMetrics(1.0, 0, step, 2.0, 0.1, 8, data_wait_percent=1.5)
        )
        monitor.sample()
    monitor.stop_monitoring()
    return tmp_path


def test_the_page_has_numbers_curves_and_alerts(run: Path) -> None:
    page = write_report(run).read_text()
    assert "monitoring.system_metrics_heading" in page
    assert "monitoring.gpu_too_hot(subject=GPU 0 (Tesla T4), value=87" in page
    assert "CPU load, %" in page
    assert "GPU temperature, °C" in page
    assert "max 40 · last 40<" in page  # of the processor
    assert "max 90 · last 90<" in page


def test_a_run_without_alerts_is_shown_as_one(tmp_path: Path) -> None:
    monitor = TrainingMonitor(tmp_path, machine=ScriptedMachine(), gpus=ScriptedGpus())
    monitor.stop_monitoring()
    assert "monitoring.no_alerts_raised" in machine_use(read_view(tmp_path))


def test_a_run_that_was_not_watched_has_no_section(tmp_path: Path) -> None:
    assert machine_use(read_view(tmp_path)) == ""


def test_damaged_samples_are_left_out(run: Path) -> None:
    file = run / SYSTEM_FILE
    damaged = [
        "no json",
        json.dumps({"step": "x", "cpu_percent": "high", "gpus": 7}),
        json.dumps({"gpus": ["GPU"], "cpu_percent": None}),
    ]
    file.write_text(file.read_text() + "\n".join(damaged) + "\n")
    assert "max 40 · last 40<" in machine_use(read_view(run))


def test_a_curve_and_its_newest_value_have_one_unit(tmp_path: Path) -> None:
    """It ends below a GiB, in which it is drawn."""
    (tmp_path / "run.json").write_text("{}")
    view = read_view(tmp_path)
    view["machine"]["curves"] = {"process_memory_bytes": [(0.0, 2.0 * GIB), (60.0, 0.98 * GIB)]}
    page = machine_figures(view)
    assert "Memory of the run, GiB" in page
    assert "max 2 · last 0.980<" in page
    assert "MiB" not in page


def test_a_pause_has_its_length_and_no_count_of_stops(run: Path) -> None:
    """A short one between a kill and what goes on is no pause, and was a stop all the same."""
    view = read_view(run)
    view["machine"]["pauses"] = [(100.0, 161.0)]
    page = machine_figures(view)
    assert "monitoring.curves_omit_pauses" in page
    assert "stopped" not in page
