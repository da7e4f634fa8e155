"""Monitoring of a run and its machine: samples, alerts and statistics.

    monitor = TrainingMonitor(run_directory)
    monitor.start_monitoring()
    monitor.log_training_metrics(TrainingMetrics(time.time(), epoch, step, loss, rate, batch_size))
    summary = monitor.get_performance_summary()
    monitor.stop_monitoring()

A thread samples the machine at every interval, writes the samples and sends alerts. Logging a step
takes a few comparisons and never waits. Memory is bounded, however long the run is. A failing part
(a sink, a disk, a driver) is reported once and switched off, and never stops the run.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.core.best_effort import BestEffort
from infrastructure.core.errors import InputError
from infrastructure.core.files import write_json
from infrastructure.core.gpu_readings import GpuReadings
from infrastructure.core.line_file import RotatingLineFile
from infrastructure.core.machine_readings import MachineReadings
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.metrics_file import Record, encode_record
from infrastructure.monitoring.watching.alert_rules import gpu_rules, machine_rules, training_rules
from infrastructure.monitoring.watching.alert_sinks import AlertSink, LogAlerts
from infrastructure.monitoring.watching.alerts import Alert, AlertWatch

logger = logging.getLogger(__name__)

SYSTEM_FILE = Path("logs") / "system" / "system.jsonl"
ALERTS_FILE = Path("logs") / "system" / "alerts.jsonl"
PERFORMANCE_FILE = Path("logs") / "performance" / "performance.jsonl"
SUMMARY_FILE = Path("logs") / "performance" / "summary.json"
INTERVAL_SECONDS = 2.0
COOLDOWN_SECONDS = 300.0
FIRST_SECONDS = 0.5  # before the first sample: rates need a time span
RECENT = 256  # number of values for the percentile
HISTORY = 1024  # number of newest samples and metrics to keep in memory
MAX_WAITING_ALERTS = 1000
JOIN_SECONDS = 10.0

Probe = Callable[[], float | None]


@dataclass
class Statistics:
    """The count, mean, minimum, maximum and last of all values, and the recent 95th percentile.

    Values that are not finite are left out.
    """

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    largest: float = -math.inf
    newest: float = math.nan
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            return
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.largest = max(self.largest, value)
        self.newest = value
        self.recent.append(value)

    def to_dict(self) -> dict[str, float]:
        """Return last, mean, min, max and p95 by name; empty before the first value."""
        if not self.count:
            return {}
        return {
            "last": self.newest,
            "mean": self.total / self.count,
            "min": self.least,
            "max": self.largest,
            "p95": percentile_95(list(self.recent)),
        }


def percentile_95(values: list[float]) -> float:
    """Return the 95th percentile of the values, interpolated linearly."""
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


class Table:
    """Statistics for several quantities, by name.

    The names come from the code, so there are few.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Statistics] = {}

    def add(self, values: Mapping[str, object]) -> None:
        """Add each value that is a number."""
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._by_name.setdefault(name, Statistics()).add(value)

    def to_dict(self) -> dict[str, dict[str, float]]:
        return {name: values for name, s in self._by_name.items() if (values := s.to_dict())}


@dataclass(frozen=True)
class TrainingMetrics:
    """The metrics of one step, or of the steps since the last record. None means not measured.

    Attributes:
        timestamp: the time in seconds since 1970.
        batch_size: the number of examples in one optimizer step.
        gradient_norm: the norm of the gradients before clipping.
        seconds_per_step: the time per step, including waiting for data, without evaluation and
            saving.
        model_flops_utilization: the used share of the device's peak FLOPS, from 0 to 1.
        data_wait_percent: the share of a step that is spent waiting for data, in percent.
        memory_bytes: the peak memory of the process or the device.
        num_tied_steps: the number of steps in a row in which all answers to each prompt have the
            same reward.
    """

    timestamp: float
    epoch: int
    step: int
    loss: float
    learning_rate: float
    batch_size: int
    gradient_norm: float | None = None
    seconds_per_step: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    model_flops_utilization: float | None = None
    data_wait_percent: float | None = None
    memory_bytes: float | None = None
    num_tied_steps: float | None = None

    def values(self) -> dict[str, float]:
        """Return the metrics that were measured, by name, without time, step and epoch."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and name not in ("timestamp", "epoch", "step")
        }


class TrainingMonitor:
    """The monitor of one run.

    Args:
        directory: the run's directory; None writes no files.
        thresholds: the limits beyond which an alert is raised. A mapping changes only the named
            limits.
        sinks: the sinks to which alerts are sent; by default, Python's logging.
        interval_seconds: the time between two samples of the machine.
        cooldown_seconds: the minimum time between two alerts of one kind.
        probes: key → a function that returns an additional value for each sample.
        watchers: parts that follow the monitor.
        machine, gpus: the sources of readings; by default, those of this machine.
        clock: returns the time in seconds since 1970.

    Raises:
        ValueError: if `interval_seconds` is not above 0, or there is no such threshold.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        thresholds: AlertThresholds | Mapping[str, Any] | None = None,
        sinks: Iterable[AlertSink] | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
        cooldown_seconds: float = COOLDOWN_SECONDS,
        probes: Mapping[str, Probe] | None = None,
        watchers: Iterable["Watcher"] = (),
        machine: MachineReadings | None = None,
        gpus: GpuReadings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not interval_seconds > 0:
            raise InputError("monitoring.interval_not_positive", interval_seconds=interval_seconds)
        given = thresholds or {}
        limits = given if isinstance(given, AlertThresholds) else AlertThresholds(**given)
        self.directory, self.interval_seconds, self.clock = directory, interval_seconds, clock
        self._num_lost: dict[str, int] = {}  # number of alerts by sink, as last reported
        self.sinks = [LogAlerts()] if sinks is None else list(sinks)
        self.probes, self.watchers = dict(probes or {}), list(watchers)
        self.step = 0
        self.recent_samples: deque[Record] = deque(maxlen=HISTORY)
        self.recent_metrics: deque[TrainingMetrics] = deque(maxlen=HISTORY)
        self._machine, self._gpus = machine, gpus
        self._watches = [
            AlertWatch(rules(limits), cooldown_seconds)
            for rules in (machine_rules, gpu_rules, training_rules)
        ]
        self._training, self._system = Table(), Table()
        self._by_gpu: dict[int, Table] = {}
        self._waiting: deque[Alert] = deque(maxlen=MAX_WAITING_ALERTS)
        self._files = _files(directory) if directory is not None else {}
        self._written_metrics: TrainingMetrics | None = None
        self._best_effort = BestEffort(logger)
        self._lock = threading.Lock()  # guards statistics and incidents
        self._sampling = threading.Lock()  # guards readings and files: one sample at a time
        self._wake, self._is_stopping = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._started_at: float | None = None

    def start_monitoring(self) -> None:
        """Begin to sample the machine in a background thread.

        Raises:
            ValueError: if the monitor has already been started.
        """
        if self._thread is not None:
            raise InputError("monitoring.monitor_already_started")
        self._is_stopping, self._started_at = False, self.clock()
        self._wake.clear()
        for watcher in self.watchers:
            self._attempt(watcher, partial(watcher.start, self))
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)
        self._thread.start()

    def stop_monitoring(self) -> None:
        """Take a last sample, write the summary, deliver remaining alerts, and close all files."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._is_stopping = True
            self._wake.set()
            thread.join(JOIN_SECONDS)
        if thread is not None and thread.is_alive():
            logger.warning(phrase("monitoring.monitor_not_responding"))
            return
        self.sample()
        for watcher in self.watchers:
            self._attempt(watcher, watcher.stop, even_if_off=True)
        for sink in self.sinks:
            self._best_effort.attempt(phrase("monitoring.alert_sink", name=sink.name), sink.close)
        self._report_lost(is_end=True)
        if self.directory is not None:
            path, summary = self.directory / SUMMARY_FILE, self.get_performance_summary()
            self._best_effort.attempt(
                phrase("monitoring.writing_file", file=path.name), lambda: write_json(path, summary)
            )
        for file in self._files.values():
            self._best_effort.attempt(f"closing {file.path.name}", file.close)
        if self._gpus is not None:
            self._gpus.close()
        self._machine = self._gpus = None

    def log_training_metrics(self, metrics: TrainingMetrics) -> None:
        """Add the metrics of a step."""
        values = metrics.values()
        with self._lock:
            self.step = metrics.step
            self.recent_metrics.append(metrics)
            self._training.add(values)
            alerts = self._watches[2].check(values, metrics.timestamp, metrics.step)
        self._raise(alerts)

    def sample(self) -> Record:
        """Sample the machine now. Return the record as it is written to `logs/system/system.jsonl`.

        The record has the keys `time` and `step`, the fields of a MachineReading, `gpus` (a list of
        GpuReadings), and the keys of the probes.
        """
        with self._sampling:
            record: Record = {"time": self.clock(), "step": self.step, **self._look()}
            alerts = self._take(record)
            self._write("system", record)
            self._write_performance()
            for watcher in self.watchers:
                self._attempt(watcher, partial(watcher.sampled, record))
        self._raise(alerts)
        if self._thread is None:
            self._deliver()
        return record

    def get_performance_summary(self) -> dict[str, Any]:
        """Return statistics over all samples.

        Returns:
            A dictionary with these keys: `seconds` (the monitored time), `step`, `training` and
            `machine` (for each value: last, mean, min, max and p95, the 95th percentile of recent
            values), `gpus` (the same for each GPU, with index and name), and `alerts` (`raised`:
            their number by rule; `open`: the open incidents; `lost`: the number of undelivered
            alerts, if there are any).
        """
        with self._lock:
            started = self._started_at
            raised: dict[str, int] = {}
            for watch in self._watches:
                raised |= watch.num_raised
            lost = {"lost": dict(self._num_lost)} if self._num_lost else {}
            return {
                "seconds": 0.0 if started is None else self.clock() - started,
                "step": self.step,
                "training": self._training.to_dict(),
                "machine": self._system.to_dict(),
                "gpus": [
                    {"index": index, **table.to_dict()}
                    for index, table in sorted(self._by_gpu.items())
                ],
                "alerts": {"raised": raised, "open": self._open_incidents(), **lost},
            }

    def latest(self) -> tuple[Record, TrainingMetrics | None]:
        """Return the newest sample (empty before the first) and the newest metrics."""
        with self._lock:
            sample = self.recent_samples[-1] if self.recent_samples else {}
            return sample, self.recent_metrics[-1] if self.recent_metrics else None

    def _attempt(
        self, watcher: "Watcher", call: Callable[[], None], *, even_if_off: bool = False
    ) -> None:
        what = phrase("monitoring.watcher", name=type(watcher).__name__)
        self._best_effort.attempt(what, call, even_if_off=even_if_off)

    def _open_incidents(self) -> list[dict[str, str]]:
        return [
            {"rule": rule, "subject": subject}
            for watch in self._watches
            for rule, subject in watch.open_incidents()
        ]

    def _watch(self) -> None:
        """Sample the machine at every interval, and deliver alerts, until monitoring stops."""
        self._best_effort.attempt(
            phrase("monitoring.machine_readings"), self._read_machine
        )  # rates begin here
        due = time.monotonic() + min(self.interval_seconds, FIRST_SECONDS)
        while not self._is_stopping:
            if time.monotonic() >= due:
                due = time.monotonic() + self.interval_seconds
                self._best_effort.attempt(phrase("monitoring.the_monitor"), self.sample)
            self._deliver()
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()

    def _look(self) -> Record:
        sample: Record = {}
        machine = self._best_effort.attempt(
            phrase("monitoring.machine_readings"), self._read_machine
        )
        sample |= machine or {}
        sample["gpus"] = (
            self._best_effort.attempt(phrase("monitoring.gpu_readings"), self._read_gpus) or []
        )
        for name, probe in self.probes.items():
            sample[name] = self._best_effort.attempt(phrase("monitoring.probe", name=name), probe)
        return sample

    def _read_machine(self) -> Record:
        if self._machine is None:
            self._machine = MachineReadings(self.directory or Path())
        reading = self._machine.read()
        return {**vars(reading), "memory_percent": reading.memory_percent}

    def _read_gpus(self) -> list[Record]:
        if self._gpus is None:
            self._gpus = GpuReadings()
        return [{**vars(gpu), "memory_percent": gpu.memory_percent} for gpu in self._gpus.read()]

    def _take(self, record: Record) -> list[Alert]:
        now, step = record["time"], record["step"]
        with self._lock:
            self.recent_samples.append(record)
            self._system.add({k: v for k, v in record.items() if k not in ("time", "step")})
            alerts = self._watches[0].check(record, now, step)
            for gpu in record["gpus"]:
                table = self._by_gpu.setdefault(gpu["index"], Table())
                table.add({k: v for k, v in gpu.items() if k != "index"})
                subject = f"GPU {gpu['index']} ({gpu['name']})"
                alerts += self._watches[1].check(gpu, now, step, subject)
        return alerts

    def _raise(self, alerts: list[Alert]) -> None:
        if alerts:
            self._waiting.extend(alerts)
            self._wake.set()

    def _deliver(self) -> None:
        """Deliver all waiting alerts: beginnings and ends to the log file, only beginnings to the
        sinks.
        """
        while self._waiting:
            alert = self._waiting.popleft()
            self._write("alerts", alert.record())
            for sink in self.sinks if alert.state == "raised" else []:
                self._best_effort.attempt(
                    phrase("monitoring.alert_sink", name=sink.name), partial(sink.send, alert)
                )
        self._report_lost()

    def _report_lost(self, *, is_end: bool = False) -> None:
        """Report alerts that could not be delivered: once after the first, and at the end of the
        run.
        """
        for sink in self.sinks:
            num_lost, why = getattr(sink, "lost", (0, ""))
            num_known = self._num_lost.get(sink.name, 0)
            if num_lost == num_known or (num_known and not is_end):
                continue
            self._num_lost[sink.name] = num_lost
            text = phrase(
                "monitoring.alerts_not_delivered",
                count=num_lost,
                sink=sink.name,
                reason=why,
                alerts_file=ALERTS_FILE,
            )
            alert = Alert(
                time=self.clock(),
                step=self.step,
                rule="lost_alerts",
                subject=sink.name,
                state="raised",
                severity="warning",
                value=num_lost,
                limit=0,
                message=text,
            )
            self._write("alerts", alert.record())
            for other in self.sinks:
                if not hasattr(other, "lost"):
                    self._best_effort.attempt(
                        phrase("monitoring.alert_sink", name=other.name), partial(other.send, alert)
                    )

    def _write_performance(self) -> None:
        _, metrics = self.latest()
        if metrics is not None and metrics is not self._written_metrics:
            self._written_metrics = metrics
            place = {"time": metrics.timestamp, "step": metrics.step, "epoch": metrics.epoch}
            self._write("performance", {**place, **metrics.values()})

    def _write(self, name: str, record: Record) -> None:
        file = self._files.get(name)
        if file is not None:
            self._best_effort.attempt(
                phrase("monitoring.writing_file", file=file.path.name),
                lambda: file.append(encode_record(record)),
            )


class Watcher:
    """A part that follows a monitor. If one of its calls fails, it is not called any more."""

    def start(self, monitor: TrainingMonitor) -> None:
        """Begin to follow `monitor`, which is being started."""

    def sampled(self, sample: Record) -> None:
        """Take a sample of the machine. The monitor's thread calls this."""

    def stop(self) -> None:
        """End what `start` began."""


def _files(directory: Path) -> dict[str, RotatingLineFile]:
    paths = {"system": SYSTEM_FILE, "alerts": ALERTS_FILE, "performance": PERFORMANCE_FILE}
    return {name: RotatingLineFile(directory / path) for name, path in paths.items()}
