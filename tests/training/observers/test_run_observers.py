"""Observers on the events that a training fires, in the order in which the loop fires them."""

import io
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.core.errors import TrainingDivergedError
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Event, HookRunner, Observer
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.progress import Progress
from infrastructure.training.metrics.sinks import ConsoleSink, make_sinks
from infrastructure.training.observers import run_observers
from infrastructure.training.observers.run_observers import (
    ERRORS_FILE,
    LINE_SECONDS,
    LOOK_SECONDS,
    CheckpointLines,
    CopiesObserver,
    ErrorsObserver,
    MetricsObserver,
    ProgressObserver,
    ReportObserver,
)
from infrastructure.training.recovery.recovery_log import record_recovery
from tests.training.toy_training import Training


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1), total_steps=100)


def log_step(state: TrainingState, hooks: HookRunner, step: int, loss: float) -> None:
    state.step = step
    state.metrics = {"loss": loss, "tokens_per_second": 100.0}
    hooks.fire(Event.STEP_END, state)


def evaluate(state: TrainingState, hooks: HookRunner, loss: float) -> None:
    state.evaluation = {"eval_loss": loss}
    hooks.fire(Event.EVAL_END, state)


def metrics_hooks(directory: Path) -> HookRunner:
    return HookRunner([MetricsObserver(MetricsLogger(make_sinks(["jsonl"], directory)))])


# --- metrics -----------------------------------------------------------------


def test_logged_steps_and_evaluations_are_written(tmp_path: Path, state: TrainingState) -> None:
    hooks = metrics_hooks(tmp_path)
    hooks.fire(Event.TRAIN_START, state)
    log_step(state, hooks, 1, 5.0)
    state.step, state.metrics = 2, {}  # a step that the loop did not read
    hooks.fire(Event.STEP_END, state)
    state.position.epoch = 1
    log_step(state, hooks, 10, 4.0)
    evaluate(state, hooks, 4.5)
    hooks.fire(Event.TRAIN_END, state)
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "epoch": 0, "loss": 5.0, "tokens_per_second": 100.0},
        {"step": 10, "epoch": 1, "loss": 4.0, "tokens_per_second": 100.0},
        {"step": 10, "epoch": 1, "kind": "evaluation", "eval_loss": 4.5},
    ]


def test_the_console_knows_the_length_of_the_run(state: TrainingState) -> None:
    lines: list[str] = []
    hooks = HookRunner([MetricsObserver(MetricsLogger([ConsoleSink(lines.append)]))])
    hooks.fire(Event.TRAIN_START, state)
    state.step = 50
    evaluate(state, hooks, 2.5)
    assert lines == ["[ 50%] step 50/100  epoch 1  held-out loss 2.500"]


def test_a_resumed_run_has_every_step_once(tmp_path: Path, state: TrainingState) -> None:
    killed = metrics_hooks(tmp_path)
    killed.fire(Event.TRAIN_START, state)
    for step in (10, 20, 30):
        log_step(state, killed, step, 1.0)
    killed.fire(Event.TRAIN_END, state)
    resumed = metrics_hooks(tmp_path)
    state.step, state.metrics = 20, {}
    resumed.fire(Event.TRAIN_START, state)
    log_step(state, resumed, 30, 2.0)
    resumed.fire(Event.TRAIN_END, state)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [(r["step"], r["loss"]) for r in records] == [(10, 1.0), (20, 1.0), (30, 2.0)]


def test_the_step_that_diverged_is_written_too(tmp_path: Path, state: TrainingState) -> None:
    hooks = metrics_hooks(tmp_path)
    hooks.fire(Event.TRAIN_START, state)
    log_step(state, hooks, 1, 5.0)
    state.step, state.metrics = 2, {"loss": math.nan}
    state.error = TrainingDivergedError("step 2")
    hooks.fire(Event.ERROR, state)
    hooks.fire(Event.TRAIN_END, state)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2]
    assert math.isnan(records[1]["loss"])


def test_an_error_of_another_kind_writes_nothing_twice(
    tmp_path: Path, state: TrainingState
) -> None:
    hooks = metrics_hooks(tmp_path)
    hooks.fire(Event.TRAIN_START, state)
    log_step(state, hooks, 1, 5.0)
    hooks.fire(Event.ERROR, state)
    hooks.fire(Event.TRAIN_END, state)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


class Crash(Observer):
    """Raises after a step, as a machine that goes away does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, state: TrainingState) -> None:
        if state.step == self.step:
            raise RuntimeError("the machine went away")


def lasting(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without what differs from one moment to the next."""
    changing = {"seconds", "tokens_per_second", "memory_bytes"}
    return [{k: v for k, v in record.items() if k not in changing} for record in records]


def test_the_numbers_of_a_killed_run_are_those_of_a_whole_one(tmp_path: Path) -> None:
    def observed(directory: Path, *hooks: Observer) -> Training:
        sinks = make_sinks(["jsonl", "csv"], directory)
        observer = MetricsObserver(MetricsLogger(sinks))
        settings = {"log_frequency": 2, "checkpoint_frequency": 4, "validation_frequency": 3}
        return Training(directory / "checkpoints", hooks=[observer, *hooks], **settings)

    observed(tmp_path / "whole").run()
    crashing = observed(tmp_path / "killed", Crash(step=7))
    with pytest.raises(RuntimeError, match="went away"):
        crashing.run()
    observed(tmp_path / "killed").resume(by_step(crashing.checkpoints.store)[4])
    whole = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    killed = read_metrics(tmp_path / "killed" / "metrics.jsonl")
    assert lasting(killed) == lasting(whole)
    assert {record["step"] for record in whole if "kind" in record} == {3, 6, 9, 12}
    table = (tmp_path / "killed" / "metrics.csv").read_text().splitlines()
    assert len(table) == 1 + len(whole)


# --- progress ----------------------------------------------------------------


def test_progress_follows_the_training(state: TrainingState) -> None:
    stream = io.StringIO()
    hooks = HookRunner([ProgressObserver(lambda total, step: Progress(total, step, stream))])
    state.step = 50
    hooks.fire(Event.TRAIN_START, state)
    log_step(state, hooks, 55, math.nan)
    state.step, state.metrics = 60, {}
    hooks.fire(Event.STEP_END, state)
    hooks.fire(Event.TRAIN_END, state)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("[ 55%] step 55/100  loss NaN  100 tok/s")
    assert second.startswith("[ 60%] step 60/100  loss NaN  100 tok/s")


@pytest.mark.parametrize("closed_at_step", [0, 10])
def test_a_closed_terminal_does_not_stop_the_training(
    state: TrainingState, closed_at_step: int, caplog: pytest.LogCaptureFixture
) -> None:
    stream = io.StringIO()
    observer = ProgressObserver(lambda total, step: Progress(total, step, stream))
    hooks = HookRunner([observer])
    if closed_at_step == 0:
        stream.close()
    hooks.fire(Event.TRAIN_START, state)
    stream.close()
    for step in (10, 20, 30):
        log_step(state, hooks, step, 1.0)
    hooks.fire(Event.TRAIN_END, state)
    assert len(caplog.records) == 1
    assert "core.part_is_off(name=training.progress_display(), " in caplog.text


# --- report ------------------------------------------------------------------


def test_the_report_is_written_after_evaluations_but_not_too_often(
    tmp_path: Path, state: TrainingState
) -> None:
    now = [0.0]
    hooks = HookRunner([ReportObserver(tmp_path, interval_seconds=60, clock=lambda: now[0])])
    report = tmp_path / "report.html"
    evaluate(state, hooks, 3.0)
    assert report.exists()
    report.unlink()
    now[0] = 59.0
    evaluate(state, hooks, 2.9)
    assert not report.exists()
    now[0] = 60.0
    evaluate(state, hooks, 2.8)
    assert report.exists()
    report.unlink()
    hooks.fire(Event.TRAIN_END, state)
    assert report.exists()


def test_a_report_that_takes_long_is_written_seldom(
    state: TrainingState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes two seconds, which are a hundredth of the time until the next one."""
    now, written = [0.0], list[float]()

    def write(directory: Path) -> None:
        now[0] += 2.0
        written.append(now[0])

    monkeypatch.setattr(run_observers, "write_report", write)
    hooks = HookRunner([ReportObserver(tmp_path, interval_seconds=60, clock=lambda: now[0])])
    for now[0] in (0.0, 201.9, 202.0):
        evaluate(state, hooks, 3.0)
    assert written == [2.0, 204.0]


def test_a_report_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, state: TrainingState, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = HookRunner([ReportObserver(tmp_path / "gone")])
    with caplog.at_level(logging.WARNING):
        evaluate(state, hooks, 3.0)
    assert "training.file_not_written(name=report.html, error=" in caplog.text


# --- errors ------------------------------------------------------------------


def errors_of(directory: Path) -> list[dict[str, Any]]:
    return read_metrics(directory / ERRORS_FILE)


def test_each_recovery_and_the_error_that_ends_a_run_are_written(tmp_path: Path) -> None:
    training = Training(
        tmp_path / "checkpoints",
        hooks=[ErrorsObserver(tmp_path), Crash(9)],
        batch_size=6,
        gradient_accumulation=1,
    )
    training.adapter.fail_above, training.adapter.poison_example = 3, 13
    with pytest.raises(RuntimeError):
        training.run()
    written = errors_of(tmp_path)
    assert written[:-1] == training.state.recoveries
    kinds = [(record["kind"], record["step"]) for record in written]
    assert kinds[0] == ("out_of_memory", 1)
    assert ("not_finite", 2) in kinds
    assert kinds[-1] == ("RuntimeError", 9)
    assert written[-1]["action"] == "training.run_stopped()"
    message = written[-1]["message"]
    assert message.startswith("the machine went away at test_run_observers.py:")


def test_a_resumed_run_writes_what_is_missing_and_nothing_twice(
    tmp_path: Path, state: TrainingState
) -> None:
    record_recovery(state, "save_refused", "goes on", "first")
    record_recovery(state, "save_refused", "goes on", "second")
    for _ in range(2):
        observer = ErrorsObserver(tmp_path)
        observer.train_start(state)
        observer.step_end(state)
        observer.train_end(state)
    record_recovery(state, "save_refused", "goes on", "third")
    ErrorsObserver(tmp_path).train_start(state)
    assert errors_of(tmp_path) == state.recoveries


def test_a_run_without_errors_has_no_file(tmp_path: Path) -> None:
    Training(hooks=[ErrorsObserver(tmp_path)]).run()
    assert not (tmp_path / "logs").exists()


def test_an_interrupt_is_no_error(tmp_path: Path, state: TrainingState) -> None:
    state.error = KeyboardInterrupt()
    ErrorsObserver(tmp_path).error(state)
    assert not (tmp_path / "logs").exists()


def test_the_file_of_errors_does_not_grow_without_end(
    tmp_path: Path, state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_observers, "MAX_ERROR_LINES", 20)
    observer = ErrorsObserver(tmp_path)
    observer.train_start(state)
    for number in range(30):
        record_recovery(state, "save_refused", "goes on", str(number))
        observer.step_end(state)
    assert len(errors_of(tmp_path)) == 20


def test_errors_that_cannot_be_written_are_reported_once(
    tmp_path: Path, state: TrainingState, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").write_text("in the way")
    observer = ErrorsObserver(tmp_path)
    for number in range(3):
        record_recovery(state, "save_refused", "goes on", str(number))
        observer.step_end(state)
    assert caplog.text.count(f"training.file_incomplete(name={tmp_path / ERRORS_FILE}") == 1


# --- checkpoints -------------------------------------------------------------


class Shown:
    """Lines on checkpoints, of a training whose clock and destination are set by hand."""

    def __init__(self, state: TrainingState, has_destination: bool = True) -> None:
        self.lines: list[str] = []
        self.now, self.confirmed, self.num_looks = 1000.0, None, 0
        self.state, look = state, self.look if has_destination else None
        self.hooks = HookRunner([CheckpointLines(self.lines.append, look, lambda: self.now)])

    confirmed: int | None

    def look(self) -> int | None:
        self.num_looks += 1
        return self.confirmed

    def save(self, step: int) -> None:
        self.state.step = step
        self.hooks.fire(Event.CHECKPOINT_SAVED, self.state)

    def end_step(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.hooks.fire(Event.STEP_END, self.state)


def test_a_line_shows_that_a_checkpoint_is_saved_and_one_that_it_is_backed_up(
    state: TrainingState,
) -> None:
    shown = Shown(state)
    shown.save(10)
    saved = "training.checkpoint_saved(step=10)"
    assert shown.lines == [saved]
    shown.confirmed = 9
    shown.end_step()
    assert shown.lines == [saved]
    shown.confirmed = 12  # newer than what was shown as saved
    shown.end_step(LOOK_SECONDS / 2)
    assert (shown.lines, shown.num_looks) == ([saved], 1)  # looks are some time apart
    shown.end_step(LOOK_SECONDS / 2)
    shown.end_step(LOOK_SECONDS)
    assert shown.lines == [saved, "training.checkpoint_backed_up(step=10)"]
    assert shown.num_looks == 2  # nothing is waited for any more


def test_there_is_at_most_one_line_a_minute_on_saved_checkpoints(state: TrainingState) -> None:
    shown = Shown(state)
    for step in range(1, 122):  # a second each
        shown.save(step)
        shown.confirmed = step
        shown.end_step(1.0)
    saved = [line for line in shown.lines if "checkpoint_saved" in line]
    assert saved == [
        f"training.checkpoint_saved(step={1 + n * int(LINE_SECONDS)})" for n in (0, 1, 2)
    ]
    rate = "training.saves_shown_once_a_minute(run=RUN)"
    assert (shown.lines.count(rate), shown.lines[2]) == (1, rate)  # when the first is not shown
    assert len(shown.lines) == 7  # each of the three was backed up


def test_the_save_of_a_stop_is_shown(state: TrainingState) -> None:
    shown = Shown(state)
    shown.save(1)
    state.interrupt("Ctrl-C")
    shown.save(2)
    assert shown.lines[-1] == "training.checkpoint_saved(step=2)"


def test_there_is_no_line_on_what_is_saved_before_the_first_step(state: TrainingState) -> None:
    shown = Shown(state)
    shown.save(0)
    assert shown.lines == []
    shown.save(1)
    assert shown.lines == ["training.checkpoint_saved(step=1)"]


def test_without_a_destination_nothing_is_backed_up(state: TrainingState) -> None:
    shown = Shown(state, has_destination=False)
    shown.save(10)
    shown.end_step(LOOK_SECONDS)
    assert shown.lines == ["training.checkpoint_saved(step=10)"]


# --- copies ------------------------------------------------------------------


class Copier:
    """The backup of a run; nothing of it can be started the first time."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")
        raise OSError("no more processes")

    def look_after(self) -> None:
        self.calls.append("look")

    def nudge(self) -> None:
        self.calls.append("nudge")


def test_a_copier_is_looked_after_each_second_and_hears_of_each_checkpoint(
    monkeypatch: pytest.MonkeyPatch, state: TrainingState, caplog: pytest.LogCaptureFixture
) -> None:
    now, copier = [100.0], Copier()
    monkeypatch.setattr(run_observers.time, "monotonic", lambda: now[0])
    hooks = HookRunner([CopiesObserver(copier)])  # type: ignore[arg-type]
    hooks.fire(Event.TRAIN_START, state)
    failed = "training.backup_worker_not_started(name=the backup worker, error=no more processes)"
    [warning] = caplog.messages
    assert warning.startswith(failed)
    for _ in range(5):  # 0.4 seconds each
        log_step(state, hooks, 1, 1.0)
        now[0] += 0.4
    assert copier.calls == ["start", "look", "look"]
    hooks.fire(Event.CHECKPOINT_SAVED, state)
    hooks.fire(Event.CHECKPOINT_SAVED, state)
    assert copier.calls[3:] == ["nudge", "nudge"]


@pytest.mark.parametrize("has_place", [True, False])
def test_a_run_is_observed_in_an_order_in_which_each_reads_what_is_written(
    tmp_path: Path, has_place: bool
) -> None:
    run: Any = SimpleNamespace(path=tmp_path / "a run")
    copies: Any = SimpleNamespace(has_place=has_place, confirmed_step=lambda: 3, backup=Copier())
    sinks, progress, report = (
        make_sinks(["jsonl"], tmp_path),
        ProgressObserver(),
        list[str]().append,
    )
    found: list[Any] = run_observers.run_observers(run, copies, report, sinks, [progress])
    kinds = [MetricsObserver, ProgressObserver, CheckpointLines, ErrorsObserver, ReportObserver]
    assert [type(one) for one in found] == [*kinds, *[CopiesObserver] * has_place]
    metrics, shown, lines, errors, reports, *copier = found
    assert (metrics.metrics_logger.sinks, shown, lines.show) == (sinks, progress, report)
    assert lines.confirmed_step is (copies.confirmed_step if has_place else None)
    assert lines.run == f"'{tmp_path}/a run'"
    assert errors.file.path == run.path / ERRORS_FILE
    assert reports.run_directory == run.path
    assert [one.backup for one in copier] == [copies.backup] * has_place
