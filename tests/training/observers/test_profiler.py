"""Some steps of a real toy training under the real profiler."""

import json
from pathlib import Path

import pytest
import torch

from infrastructure.monitoring.records.run_reader import PROFILE_FILE
from infrastructure.training.observers.profiler import TRACE_FILE, ProfilerObserver
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
    assert caplog.text.count("training.profiling_failed") == 1
