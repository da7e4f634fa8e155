"""A reader of a run that may still be training. Each refresh reads only the new records.

Only the run directory is read, so a run can be observed before training begins, after it ends, and
across kills and resumes. Nothing on the disk is changed. Memory use is limited, however long the
run is.
"""

import itertools
import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import EVALUATION, WIDE, PointsByKey, holes
from infrastructure.monitoring.drawing.downsampling import BoundedPoints
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.records.jsonl_tail import GrowingFile, GrowingLog
from infrastructure.monitoring.records.machine_history import MachineHistory
from infrastructure.monitoring.records.run_owner import TrainerProcess, read_trainer, was_stopped
from infrastructure.monitoring.records.run_reader import (
    ERRORS_FILE,
    FINISHED,
    METRICS_FILE,
    SMALL_FILES,
    RunFacts,
    brought_back_from,
    read_small_files,
)
from infrastructure.monitoring.training_monitor import ALERTS_FILE, PERFORMANCE_FILE, SYSTEM_FILE

MAX_RECENT_RECORDS = 400
MAX_ALERTS = 200
MAX_ERRORS = 200
MAX_POINTS, MAX_SMALL_POINTS = 2000, 800  # for the curve that is drawn wide, and for others
RATE_SECONDS = 60.0

ENDED = (FINISHED, "stopped", "failed", "interrupted")
STATES = ("starting", "running", *ENDED)


class LiveRun:
    """The state of a run as of the last `refresh`.

    Attributes:
        facts: the contents of run.json, summary.json and the run's other small files.
        records: the newest records of the metrics.
        points: the (step, value) pairs of each key.
        evaluated: the keys that come from evaluations.
        machine: the monitor's samples; empty if the monitor is off.
        errors: the newest errors from which the run recovered, and the one that ended it.
        num_errors: the number of all errors.
        alerts: the newest alerts, the oldest first. Those that are over have `ended_at`.
        trainer: the process that trains the run, or did so last.
        seconds_trained: the total time of all logged steps.
        num_rated, seconds_rated: the number of tokens, and the time, of all steps whose speed was
            logged.
        written_at: the Unix time of the newest values, or None before there are any.

    Raises:
        ValueError: if there is no such directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.facts: RunFacts = RunFacts(directory)
        self.trainer: TrainerProcess | None = None
        self._metrics = GrowingFile(directory / METRICS_FILE)
        self._samples = GrowingLog(directory / SYSTEM_FILE)
        self._performance = GrowingLog(directory / PERFORMANCE_FILE)
        self._alerts = GrowingLog(directory / ALERTS_FILE)
        self._errors = GrowingFile(directory / ERRORS_FILE)
        self.machine = MachineHistory()
        self.alerts: deque[Record] = deque(maxlen=MAX_ALERTS)
        self.errors: deque[Record] = deque(maxlen=MAX_ERRORS)
        self.num_errors = 0
        self._signature: tuple[object, ...] = ()
        self._num_starts = 0
        self._metrics_changed_at: float | None = None
        self._forget()
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        """Read new records and changed files.

        Raises:
            ValueError: if the run's directory is gone.
        """
        self._read_small()
        self._read_metrics()
        for file, take in (
            (self._samples, self.machine.add),
            (self._performance, self.machine.add_performance),
            (self._alerts, self._note),
            (self._errors, self._note_error),
        ):
            for record in file.read_new():
                take(record)
        self.trainer = read_trainer(self.directory)

    def close(self) -> None:
        """Close the files."""
        for file in (self._metrics, self._samples, self._performance, self._alerts, self._errors):
            file.close()

    @property
    def state(self) -> str:
        """The state of the run, one of `STATES`."""
        return state_of(self.facts, self.trainer)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def step(self) -> int | None:
        """The number of completed steps, according to the newest record."""
        steps = self.facts.summary.get("steps", self.last("step"))
        logged = int(steps) if isinstance(steps, int | float) else None
        sampled, moment = (self.machine.last.get(key) for key in ("step", "time"))
        is_newer = isinstance(moment, int | float) and moment > (self._metrics_changed_at or 0.0)
        if not self.has_ended and is_newer and isinstance(sampled, int):
            return sampled
        return logged

    @property
    def total_steps(self) -> int | None:
        total = self.facts.summary.get("total_steps")
        return total if isinstance(total, int) and total > 0 else None

    @property
    def share_done(self) -> float | None:
        """The completed share of the run, from 0 to 1; None if it is unknown."""
        if self.step is None or self.total_steps is None:
            return None
        return min(1.0, self.step / self.total_steps)

    @property
    def seconds_per_step(self) -> float | None:
        """The seconds per step: mean of the last minute; after training, mean of all steps.

        None if fewer than two steps are logged.
        """
        if self.has_ended and self.step and self.seconds_trained:
            return self.seconds_trained / self.step
        timed = [(r.get("step"), r.get("seconds")) for r in self.records]
        steps = [(s, t) for s, t in timed if isinstance(s, int) and isinstance(t, int | float)]
        seconds, num_steps = 0.0, 0
        for (before, _), (step, step_seconds) in reversed(list(itertools.pairwise(steps))):
            if seconds >= RATE_SECONDS:
                break
            seconds, num_steps = seconds + step_seconds, num_steps + step - before
        return seconds / num_steps if num_steps > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds until the last step; None if the run is not training."""
        if self.state != "running" or self.step is None or self.total_steps is None:
            return None
        each = self.seconds_per_step
        return None if each is None else max(0, self.total_steps - self.step) * each

    def last(self, key: str) -> float | None:
        """Return the newest value under `key` in the records, if it is a number."""
        values = (record[key] for record in reversed(self.records) if key in record)
        value = next(values, None)
        return value if isinstance(value, int | float) else None

    @property
    def peak_memory_bytes(self) -> float | None:
        """The peak memory: the maximum of all records of the run."""
        summary = self.facts.summary
        optimizer, forecast = summary.get("memory"), summary.get("forecast")
        seen = [record.get("memory_bytes") for record in self.records]
        seen += [summary.get("peak_memory_bytes")]
        seen += [optimizer.get("highest_bytes")] if isinstance(optimizer, dict) else []
        for row in forecast if isinstance(forecast, list) else []:
            if isinstance(row, dict) and row.get("what") == "peak_memory_bytes":
                seen.append(row.get("was"))
        return max((value for value in seen if isinstance(value, int | float)), default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """The tokens per second: of the newest step; after training, mean of all steps."""
        if not self.has_ended or not self.seconds_rated:
            return self.last("tokens_per_second")
        return self.num_rated / self.seconds_rated

    @property
    def curves(self) -> PointsByKey:
        """The (step, value) pairs of each key, condensed if there are many."""
        return {key: points.kept for key, points in self.points.items()}

    @property
    def problems(self) -> list[str]:
        """Sentences on unreadable files, damaged lines, and values that are not finite."""
        damaged = [
            phrase(
                "monitoring.damaged_lines_skipped",
                count=file.num_unreadable,
                file=file.path.name,
            )
            for file in (self._metrics, self._errors)
            if file.num_unreadable
        ]
        not_finite = [f"Not finite: {sentence}." for sentence in holes(self.curves)]
        return [*self.facts.problems, *damaged, *not_finite]

    def _read_small(self) -> None:
        signature = tuple(_signature(self.directory / name) for name in SMALL_FILES)
        if signature != self._signature or not self.directory.is_dir():
            self.facts = read_small_files(self.directory)
            self._signature = signature

    def _read_metrics(self) -> None:
        records = self._metrics.read_new()
        is_new = self._metrics.num_starts != self._num_starts
        if is_new:  # the run resumed from an earlier step
            self._num_starts = self._metrics.num_starts
            self._forget()
        for record in records:
            self._add(record)
            is_new = True
        if is_new:
            self._metrics_changed_at = changed_at(self.directory / METRICS_FILE)

    def _note_error(self, error: Record) -> None:
        self.num_errors += 1
        self.errors.append(error)

    def _note(self, alert: Record) -> None:
        """Record the beginning of an alert, or the end of an earlier alert."""
        kind = (alert.get("rule"), alert.get("subject"))
        if alert.get("state") != "ended":
            self.alerts.append(alert)
            return
        for earlier in reversed(self.alerts):
            if (earlier.get("rule"), earlier.get("subject")) == kind:
                earlier["ended_at"] = alert.get("time")
                return

    def _forget(self) -> None:
        self.points: dict[str, BoundedPoints] = {}
        self.evaluated: set[str] = set()
        self.seconds_trained = self.num_rated = self.seconds_rated = 0.0
        self._metrics_changed_at = None
        self.records: deque[Record] = deque(maxlen=MAX_RECENT_RECORDS)

    def _add(self, record: Mapping[str, object]) -> None:
        step = record.get("step")
        if not isinstance(step, int | float):
            return
        self.records.append(dict(record))
        if record.get("kind") == EVALUATION:
            self.evaluated |= set(record)
        for key, value in record.items():
            if isinstance(value, int | float):
                if key not in self.points:
                    self.points[key] = BoundedPoints(
                        MAX_POINTS if key == WIDE else MAX_SMALL_POINTS
                    )
                self.points[key].add(step, value)
        step_seconds, rate = record.get("seconds"), record.get("tokens_per_second")
        if isinstance(step_seconds, int | float) and step_seconds > 0:
            self.seconds_trained += step_seconds
            if isinstance(rate, int | float) and 0 < rate < math.inf:
                self.num_rated += rate * step_seconds
                self.seconds_rated += step_seconds

    @property
    def written_at(self) -> float | None:
        moments = (self._metrics_changed_at, self.machine.last.get("time"))
        return max((m for m in moments if isinstance(m, int | float)), default=None)

    @property
    def is_silent(self) -> bool:
        """True if the run is still running but has written no values for at least ten minutes and
        ten steps.
        """
        if self.state != "running" or self.written_at is None:
            return False
        return time.time() - self.written_at > max(600.0, 10 * (self.seconds_per_step or 0.0))


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def state_of(facts: RunFacts, trainer: TrainerProcess | None) -> str:
    """Return the state of a run, one of `STATES`, from its files and its training process."""
    ended_at = changed_at(facts.directory / "summary.json")
    is_left = facts.status != FINISHED and ended_at is not None
    if is_left and trainer is not None and trainer.is_alive and trainer.since > (ended_at or 0):
        return "starting"  # a process is about to resume it: summary.json is by the previous one
    if facts.status != "running":
        return facts.status
    if trainer is not None and trainer.is_alive is False:
        return "stopped" if was_stopped(facts.directory, trainer) else "interrupted"
    if trainer is None and brought_back_from(facts.run) is not None:
        return "interrupted"
    return "running" if facts.summary else "starting"


def changed_at(path: Path) -> float | None:
    """Return the Unix time of the last write to a file, or None if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
