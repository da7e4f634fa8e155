"""Profiled steps: a trace, and a table of the report."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.conformance.hook import HookSuite
from infrastructure.features.profiler.profiler import (
    TRACE_FILE,
    ProfilerObserver,
    profiler_of,
    table_of,
)
from infrastructure.features.profiler.report import PROFILE_FILE
from infrastructure.training.extensions.extension_hooks import Hook
from tests.deployment.runs import deploy, small_settings
from tests.training.toy_training import Training


def test_a_trace_and_a_table_of_the_requested_steps(tmp_path: Path) -> None:
    profiled = Training(hooks=[ProfilerObserver(tmp_path, 2)]).run()
    found = json.loads((tmp_path / PROFILE_FILE).read_text())
    assert (found["first_step"], found["last_step"]) == (3, 4)
    names = {row["name"] for row in found["rows"]}
    assert any(name.startswith("aten::") for name in names)
    assert all(row["calls"] > 0 for row in found["rows"])
    seconds = [row["processor_seconds"] for row in found["rows"]]
    assert seconds == sorted(seconds, reverse=True)
    events = json.loads((tmp_path / TRACE_FILE).read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("aten::") for event in events)
    assert torch.equal(profiled.weights, Training().run().weights)


def test_a_training_that_ends_before_has_what_was_recorded(tmp_path: Path) -> None:
    Training(hooks=[ProfilerObserver(tmp_path, 1000)], max_steps=5).run()
    found = json.loads((tmp_path / PROFILE_FILE).read_text())
    assert (found["first_step"], found["last_step"]) == (3, 5)


def test_a_folder_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    training = Training(hooks=[ProfilerObserver(tmp_path, 1)]).run()
    assert training.state.step == training.state.total_steps
    assert caplog.text.count("profiler.failed") == 1


def test_the_slowest_operations_come_first_by_the_gpu() -> None:
    events = [
        SimpleNamespace(key=f"op{n}", count=n, self_cpu_time_total=cpu, self_device_time_total=gpu)
        for n, (cpu, gpu) in enumerate([(5e6, 0), (1e6, 2e6), (7e6, 0), (3e6, 2e6)] + [(0, 0)] * 30)
    ]
    profiler: Any = SimpleNamespace(key_averages=lambda: events)
    rows = table_of(profiler)
    assert [tuple(row.values()) for row in rows[:4]] == [
        *(("op3", 3, 3.0, 2.0), ("op1", 1, 1.0, 2.0), ("op2", 2, 7.0, 0.0), ("op0", 0, 5.0, 0.0))
    ]
    assert [*rows[0]] == ["name", "calls", "processor_seconds", "gpu_seconds"]
    assert len(rows) == 30


def test_a_profile_is_made_once_if_steps_are_configured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert profiler_of(DeploymentConfig(), tmp_path) is None
    observer = profiler_of(DeploymentConfig(monitor={"profile_steps": 3}), tmp_path)
    assert observer is not None
    assert (observer.run_directory, observer.num_steps) == (tmp_path, 3)
    with caplog.at_level(logging.INFO, "infrastructure.features.profiler"):
        Training(hooks=[ProfilerObserver(tmp_path, 1)]).run()
    trace = tmp_path / "logs/performance/trace.json"
    assert caplog.messages == [f"profiler.steps_profiled(first_step=3, last_step=3, trace={trace})"]
    found = json.loads((tmp_path / PROFILE_FILE).read_text())
    assert found["trace"] == "logs/performance/trace.json"


class TestProfile(HookSuite):
    def make(self, folder: Path) -> Hook:
        return ProfilerObserver(folder, num_steps=1)


def test_a_run_is_profiled_and_its_report_has_the_table(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, max_steps=5)
    run, _ = deploy(DeploymentConfig(**settings, monitor={"profile_steps": 2}))
    assert json.loads((run / PROFILE_FILE).read_text())["first_step"] == 3
    assert "profiler.heading(first=3, last=4)" in (run / "report.html").read_text()
