"""Event files as TensorBoard reads them."""

import errno
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.summary.writer import event_file_writer

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import MissingPackageError
from infrastructure.features.conformance.sink import SinkSuite
from infrastructure.features.metric_exporters import tensorboard_sink
from infrastructure.features.metric_exporters.tensorboard_sink import (
    TensorBoardSink,
    machine_events,
    tracked_numbers,
)
from infrastructure.monitoring.training_monitor import SYSTEM_FILE
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.sinks import SINKS, Sink
from tests.deployment.runs import deploy, small_settings
from tests.training.metrics.test_sinks import EVALUATION, step


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(directory))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(step(10, loss=math.nan, note="text"))
    sink.write(step(20))
    sink.write(EVALUATION)
    sink.close()
    (first, loss), second = scalars(tmp_path / "tensorboard", "train/loss")
    assert first == 10
    assert math.isnan(loss)
    assert second == (20, 0.5)
    assert scalars(tmp_path / "tensorboard", "evaluation/loss") == [(20, 2.5)]


def test_numbers_are_named_by_what_they_measure() -> None:
    values = {"step": 3, "epoch": 1, "loss": 2.0, "eval_loss": 1, "note": "x", "none": None}
    assert tracked_numbers(values) == {"train/loss": 2.0, "train/eval_loss": 1}
    assert tracked_numbers({**values, "kind": "evaluation"}) == {
        "evaluation/loss": 1  # the name of the last one, as both are called so
    }
    assert tracked_numbers({**values, "kind": "machine"}) == {
        "machine/loss": 2.0,
        "machine/eval_loss": 1,
    }


def test_the_machine_is_a_run_of_its_own_where_metrics_go_to_tensorboard(tmp_path: Path) -> None:
    other = DeploymentConfig(training={"metrics_sinks": ["jsonl"]})
    assert machine_events(other, tmp_path) is None
    config = DeploymentConfig(training={"metrics_sinks": ["jsonl", "tensorboard"]})
    events = machine_events(config, tmp_path)
    assert events is not None
    gpus = [{"index": n, "name": "T4", "power_watts": 50.0 + n} for n in (0, 1)]
    events.sampled({"step": 7, "time": 1e9, "cpu_percent": 20.0, "gpus": gpus})
    events.stop()
    read = EventAccumulator(str(tmp_path / "tensorboard/machine"))
    read.Reload()
    assert {
        tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]
    } == {
        "machine/cpu_percent": [(7, 20.0)],
        **{
            f"machine/gpu{n}_{key}": [(7, value)]
            for n in (0, 1)
            for key, value in (("index", n), ("power_watts", 50.0 + n))
        },
    }


def test_the_numbers_of_a_record_are_one_event(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for record in (step(10, grad_norm=2.0), {"step": 11, "epoch": 0, "note": "text"}, step(12)):
        sink.write(record)
    sink.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    events = [
        event.step for event in EventFileLoader(str(file)).Load() if event.HasField("summary")
    ]
    assert events == [10, 12]


def test_tensorboard_shows_no_step_twice_after_a_resume(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path)
    for number in (10, 20, 30, 40):
        first.write(step(number))
    first.close()
    second = TensorBoardSink(tmp_path)
    second.truncate_after(20)
    second.write(step(30, loss=0.125))
    second.close()
    assert scalars(tmp_path / "tensorboard", "train/loss") == [(10, 1.0), (20, 0.5), (30, 0.125)]


def test_tensorboard_reads_a_run_in_order_though_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read in the order of the times in their names. Three sessions, each earlier."""
    now = time.time()
    for session, (last, steps) in enumerate([(0, (10, 20, 30)), (20, (30, 40)), (40, (50,))]):
        began = now - 86_400 * session
        monkeypatch.setattr(time, "time", lambda began=began: began)
        sink = TensorBoardSink(tmp_path)
        sink.truncate_after(last)
        for number in steps:
            sink.write(step(number, loss=number + session / 4))
            sink.write({**step(number), "kind": "evaluation", "eval_loss": 1.0})
        sink.close()
    expected = [(10, 10.0), (20, 20.0), (30, 30.25), (40, 40.25), (50, 50.5)]
    assert scalars(tmp_path / "tensorboard", "train/loss") == expected
    assert [n for n, _ in scalars(tmp_path / "tensorboard", "evaluation/loss")] == [
        10,
        20,
        30,
        40,
        50,
    ]


def test_without_tensorboard_the_pip_line_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infrastructure.core.optional.is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match="pip install tensorboard"):
        SINKS.check_usable(["tensorboard"])


def test_no_traceback_of_the_thread_that_writes_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its error is raised again where the next number is written, and told there."""
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    tensorboard_sink._show_no_tracebacks_of_its_thread()

    def fail() -> None:
        raise OSError(errno.ENOSPC, "full")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert len(shown) == 1  # of anybody else
    own = type("Writer", (threading.Thread,), {"__module__": event_file_writer.__name__})(
        target=fail
    )
    own.start()
    own.join()
    assert len(shown) == 1


class TestTensorBoard(SinkSuite):
    survives_kill = False  # its events are written by a thread; metrics.jsonl has them

    def make(self, directory: Path) -> Sink:
        return TensorBoardSink(directory)

    def read(self, directory: Path) -> list[dict[str, Any]]:
        found = scalars(directory / "tensorboard", "train/loss")
        return [{"step": step, "loss": loss} for step, loss in found]


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder is wanted")
    logger = MetricsLogger([TensorBoardSink(tmp_path / "blocked")])
    logger.truncate_after(0)
    logger.log({"step": 1, "loss": 1.0})
    logger.close()
    assert len(logger.problems) == 1


def test_a_run_writes_its_metrics_and_its_machine(tmp_path: Path) -> None:
    """By default, and again under the names of its report."""
    settings = small_settings(tmp_path, max_steps=2)
    settings["training"].pop("metrics_sinks", None)
    run, _ = deploy(DeploymentConfig(**settings, monitor={"interval": 0.1}))
    assert [n for n, _ in scalars(run / "tensorboard", "train/loss")] == [1, 2]
    assert scalars(run / "tensorboard" / "machine", "machine/cpu_percent")
    assert (run / SYSTEM_FILE).is_file()
