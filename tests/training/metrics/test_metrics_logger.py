import io
import logging
import math
from pathlib import Path

import pytest
import torch

from infrastructure.monitoring.drawing.metrics_file import Record, read_metrics
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.sinks import ConsoleSink, JsonlSink, Sink, make_sinks


class Failing(Sink):
    """Fails on some steps, as a disk that is full for a while."""

    name = "failing"

    def __init__(self, bad_steps: set[int]) -> None:
        self.bad_steps = bad_steps
        self.steps: list[int] = []

    def write(self, record: Record) -> None:
        if record["step"] in self.bad_steps:
            raise OSError(28, "No space left on device")
        self.steps.append(record["step"])


def test_every_sink_gets_every_record(tmp_path: Path) -> None:
    logger = MetricsLogger(make_sinks(["jsonl", "csv"], tmp_path))
    logger.log({"step": 1, "loss": torch.tensor(math.nan)})
    logger.log({"step": 2, "loss": torch.tensor(0.5)})
    logger.close()
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(records[0]["loss"])
    assert records[1] == {"step": 2, "loss": 0.5}
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 3
    assert logger.problems == []


def test_a_failing_sink_is_warned_about_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing({2, 3})
    logger = MetricsLogger([failing, JsonlSink(tmp_path / "metrics.jsonl")])
    for step in range(1, 5):
        logger.log({"step": step})
    assert failing.steps == [1, 4]  # it was offered every record
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    assert len(caplog.records) == 1
    assert "training.metrics_sink_failed(name=failing, " in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        logger.close()
    error = "OSError: [Errno 28] No space left on device"
    lost = f"training.metrics_sink_incomplete(name=failing, count=2, first_error={error})"
    assert logger.problems == caplog.messages == [lost]


def test_a_closed_stream_does_not_stop_the_training(tmp_path: Path) -> None:
    stream = io.StringIO()
    stream.close()
    console = ConsoleSink(lambda line: print(line, file=stream))
    logger = MetricsLogger([console, JsonlSink(tmp_path / "metrics.jsonl")])
    logger.log({"step": 1, "kind": "evaluation"})
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
    logger.close()
    assert "closed file" in logger.problems[0]


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder is wanted")
    logger = MetricsLogger(make_sinks(["jsonl", "csv"], tmp_path / "blocked"))
    logger.truncate_after(0)
    logger.log({"step": 1, "loss": 1.0})
    logger.close()
    assert len(logger.problems) == 2


def test_all_sinks_forget_the_later_steps(tmp_path: Path) -> None:
    first = MetricsLogger(make_sinks(["jsonl", "csv"], tmp_path))
    for step in (1, 2, 3):
        first.log({"step": step, "loss": 1.0})
    resumed = MetricsLogger(make_sinks(["jsonl", "csv"], tmp_path))  # the first was killed
    resumed.truncate_after(1)
    resumed.log({"step": 2, "loss": 2.0})
    resumed.close()
    first.close()
    assert [r["loss"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 2.0]
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 3


def test_a_record_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training\.metrics_record_without_step.*keys=loss"):
        MetricsLogger([]).log({"loss": 1.0})
