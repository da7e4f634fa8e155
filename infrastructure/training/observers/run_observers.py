"""Observers that write metrics, progress, errors and report of a run, and start backups.

None of them changes the training state. A display that fails (a closed terminal, a full disk) is
switched off with a message, and never ends the run.
"""

import logging
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from infrastructure.backup.run_backup import RunBackup
from infrastructure.core.best_effort import BestEffort
from infrastructure.core.error_place import at_place
from infrastructure.core.json_text import JsonObject
from infrastructure.core.line_file import LineFile
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.metrics_file import encode_record
from infrastructure.monitoring.records.run_view import from_here
from infrastructure.monitoring.report.report import write_report
from infrastructure.run.directory import RunDirectory
from infrastructure.run.replication import RunReplication
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.progress import Progress, ProgressDisplay
from infrastructure.training.metrics.sinks import EVALUATION, Sink
from infrastructure.training.recovery.recovery_log import error_record

logger = logging.getLogger(__name__)

DISPLAY = "training.progress_display"
INCOMPLETE = "training.file_incomplete"


ERRORS_FILE = Path("logs") / "errors" / "errors.jsonl"
MAX_ERROR_LINES = 1000
REPORT_INTERVAL_SECONDS = 60.0
REPORT_TIME_SHARE = 0.01
LOOK_AT_COPIER_SECONDS = 1.0
LINE_SECONDS = 60.0  # between two lines on checkpoints
LOOK_SECONDS = 2.0  # between two looks at what is backed up


class MetricsObserver(Observer):
    """An observer that sends the metrics of every logged step and evaluation to the logger.

    A step is logged if `state.metrics` is not empty. Records of later steps are dropped when the
    run resumes after a kill, and after a rollback.
    """

    def __init__(self, metrics_logger: MetricsLogger) -> None:
        self.metrics_logger = metrics_logger
        self._logged: dict[str, float] | None = None
        self._epoch = 0
        self._step = 0

    def train_start(self, state: TrainingState) -> None:
        self._logged, self._epoch = state.metrics, state.position.epoch
        self._step = state.step - state.step_is_ending
        self.metrics_logger.expect(state.total_steps)
        self.metrics_logger.truncate_after(self._step)

    def step_end(self, state: TrainingState) -> None:
        self._epoch = state.position.epoch
        self._forget_after(state.step - 1)
        self._step = state.step
        if state.metrics:
            self._log_step(state)

    def eval_end(self, state: TrainingState) -> None:
        """Log the evaluation with the epoch of the last step.

        The position may already be in the next epoch.
        """
        position = {"step": state.step, "epoch": self._epoch}
        self.metrics_logger.log({**position, "kind": EVALUATION, **state.evaluation})

    def error(self, state: TrainingState) -> None:
        """Log the metrics of a step that diverged, because STEP_END is not fired for it."""
        if state.metrics and state.metrics is not self._logged:
            self._log_step(state)

    def train_end(self, state: TrainingState) -> None:
        self._forget_after(state.step)
        self.metrics_logger.close()

    def _forget_after(self, step: int) -> None:
        if step < self._step:
            self._step = step
            self.metrics_logger.truncate_after(step)

    def _log_step(self, state: TrainingState) -> None:
        self._logged = state.metrics
        position = {"step": state.step, "epoch": state.position.epoch}
        self.metrics_logger.log({**position, **state.metrics})


class ProgressObserver(Observer):
    """An observer that updates a progress display.

    The display is created by `make_progress(total_steps, step)`.
    """

    def __init__(self, make_progress: Callable[[int, int], ProgressDisplay] = Progress) -> None:
        self.make_progress = make_progress
        self._progress: ProgressDisplay | None = None
        self._best_effort = BestEffort(logger, errors=(OSError, ValueError))  # of a closed stream

    def train_start(self, state: TrainingState) -> None:
        def make() -> ProgressDisplay:
            return self.make_progress(state.total_steps, state.step)

        self._progress = self._best_effort.attempt(phrase(DISPLAY), make)

    def step_end(self, state: TrainingState) -> None:
        progress = self._progress
        loss, rate = state.metrics.get("loss"), state.metrics.get("tokens_per_second")
        if progress is not None:
            self._best_effort.attempt(
                phrase(DISPLAY), lambda: progress.update(state.step, loss, rate)
            )

    def train_end(self, state: TrainingState) -> None:
        if self._progress is not None:
            self._best_effort.attempt(phrase(DISPLAY), self._progress.close)
        self._progress = None


class CheckpointLines(Observer):
    """An observer that shows a line when a checkpoint is saved, and when it is backed up.

    At most one save per minute is shown. When a save is not shown for the first time, a line says
    so.

    Args:
        show: shows a line.
        confirmed_step: returns the newest step at the backup destination. None: there is no backup
            destination.
        clock: returns seconds, counted from any start.
        run: the name of the run, for the hint to `temper checkpoints list`.
    """

    def __init__(
        self,
        show: Callable[[str], None],
        confirmed_step: Callable[[], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        run: str = "RUN",
    ) -> None:
        self.show, self.confirmed_step, self.clock, self.run = show, confirmed_step, clock, run
        self._is_rate_shown = False
        self._next_line = self._next_look = float("-inf")
        self._waiting: int | None = None  # a step that was shown as saved, and not yet as backed up

    def checkpoint_saved(self, state: TrainingState) -> None:
        if not state.step:
            return
        if self.clock() < self._next_line and state.stop_reason is None:
            if not self._is_rate_shown:
                self._is_rate_shown = True
                self.show(phrase("training.saves_shown_once_a_minute", run=self.run))
            return
        self._next_line = self.clock() + LINE_SECONDS
        self._waiting = state.step
        self.show(phrase("training.checkpoint_saved", step=state.step))

    def step_end(self, state: TrainingState) -> None:
        if self._waiting is None or self.confirmed_step is None or self.clock() < self._next_look:
            return
        self._next_look = self.clock() + LOOK_SECONDS
        confirmed = self.confirmed_step()
        if confirmed is not None and confirmed >= self._waiting:
            self.show(phrase("training.checkpoint_backed_up", step=self._waiting))
            self._waiting = None


class ErrorsObserver(Observer):
    """An observer that writes `logs/errors/errors.jsonl`.

    The file has a line for each error from which the run recovered, and for the error that ended
    it. A line contains time, step, kind, action (what was done), message and rows, with secrets
    masked. After MAX_ERROR_LINES nothing more is added.
    """

    def __init__(self, run_directory: Path) -> None:
        self.file = LineFile(run_directory / ERRORS_FILE)
        self._newest: JsonObject | None = None
        self._num_lines = 0
        self._best_effort = BestEffort(logger, INCOMPLETE, errors=(OSError,), tries_again=True)

    def train_start(self, state: TrainingState) -> None:
        """Write lines for errors in the restored checkpoint that a killed process has not
        written.
        """
        self._attempt(lambda: self._write_missing(state))

    def step_start(self, state: TrainingState) -> None:
        self._write_new(state)

    def step_end(self, state: TrainingState) -> None:
        self._write_new(state)

    def error(self, state: TrainingState) -> None:
        self._write_new(state)
        if isinstance(state.error, Exception):  # an interrupt is not an error
            kind, message = type(state.error).__name__, f"{state.error}{at_place(state.error)}"
            record = error_record(state.step, kind, phrase("training.run_stopped"), message)
            self._attempt(lambda: self._write(record))

    def train_end(self, state: TrainingState) -> None:
        self._write_new(state)

    def _write_new(self, state: TrainingState) -> None:
        newest = state.recoveries[-1] if state.recoveries else None
        if newest is not self._newest:
            self._attempt(lambda: self._write_missing(state))

    def _write_missing(self, state: TrainingState) -> None:
        if not state.recoveries and not self.file.path.exists():
            return
        lines = self.file.read_lines()
        self._num_lines = len(lines)
        known = set(lines)
        for record in state.recoveries:
            if encode_record(record) not in known:
                self._write(record)
        self._newest = state.recoveries[-1] if state.recoveries else None

    def _write(self, record: JsonObject) -> None:
        if self._num_lines < MAX_ERROR_LINES:
            self.file.append(encode_record(record))
            self._num_lines += 1

    def _attempt(self, action: Callable[[], None]) -> None:
        def act() -> None:
            try:
                action()
            finally:
                self.file.close()  # errors are rare

        self._best_effort.attempt(str(self.file.path), act)


class ReportObserver(Observer):
    """An observer that writes `report.html` at the end, and occasionally after evaluations.

    It reads `metrics.jsonl`, so it must come after the observer that writes that file.
    """

    def __init__(
        self,
        run_directory: Path,
        interval_seconds: float = REPORT_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_directory = run_directory
        self.interval_seconds = interval_seconds
        self.clock = clock
        self._next_time = float("-inf")
        self._best_effort = BestEffort(logger, "training.file_not_written", tries_again=True)

    def eval_end(self, state: TrainingState) -> None:
        started = self.clock()
        if started < self._next_time:
            return
        self._write()
        now = self.clock()
        self._next_time = now + max(self.interval_seconds, (now - started) / REPORT_TIME_SHARE)

    def train_end(self, state: TrainingState) -> None:
        self._write()

    def _write(self) -> None:
        self._best_effort.attempt("report.html", lambda: write_report(self.run_directory))


class CopiesObserver(Observer):
    """An observer that keeps the backup process running and notifies it of new checkpoints."""

    def __init__(self, backup: RunBackup) -> None:
        self.backup = backup
        self._next_look = float("-inf")
        self._best_effort = BestEffort(
            logger,
            "training.backup_worker_not_started",
            errors=(OSError,),
            tries_again=True,
        )

    def train_start(self, state: TrainingState) -> None:
        self._best_effort.attempt("the backup worker", self.backup.start)

    def step_end(self, state: TrainingState) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_AT_COPIER_SECONDS
            self._best_effort.attempt("the backup worker", self.backup.look_after)

    def checkpoint_saved(self, state: TrainingState) -> None:
        self._best_effort.attempt("the backup worker", self.backup.nudge)


def run_observers(
    run: RunDirectory,
    copies: RunReplication,
    report: Callable[[str], None],
    sinks: list[Sink],
    progress: Iterable[ProgressObserver],
) -> list[Observer]:
    """Return the observers that every run has, in order: the progress display closes before the
    report is written, and the report reads what the metrics observer writes.
    """
    observers = [
        MetricsObserver(MetricsLogger(sinks)),
        *progress,
        CheckpointLines(
            report,
            copies.confirmed_step if copies.has_place else None,
            run=shlex.quote(from_here(run.path)),
        ),
        ErrorsObserver(run.path),
        ReportObserver(run.path),
    ]
    return [*observers, CopiesObserver(copies.backup)] if copies.has_place else observers
