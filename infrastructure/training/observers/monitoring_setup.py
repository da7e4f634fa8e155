"""Setup of a run's monitoring: monitor, alert sinks and run log."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.core.best_effort import BestEffort
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.features import all_of
from infrastructure.core.messages import phrase
from infrastructure.data.store.token_cache import TokenCache
from infrastructure.models.flops import (
    FlopsEstimate,
    arithmetic_of,
    measure_operations_per_second,
    synchronize,
)
from infrastructure.models.model_inputs import is_sharded
from infrastructure.models.preserve import preserve
from infrastructure.monitoring.logging_config import RunLog
from infrastructure.monitoring.training_monitor import (
    Probe,
    TrainingMetrics,
    TrainingMonitor,
    Watcher,
)
from infrastructure.monitoring.watching.alert_sinks import (
    make_alert_sinks,
)
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Hook, Observer
from infrastructure.training.model_adapters.base_adapter import ModelAdapter

# Observers that pass a run's speed, data wait time, latency and checkpoint age to the monitor.
#
# Metrics are passed on when the loop has read them from the device (`log_frequency`). If the
# monitor fails, it is switched off with one warning.

MONITOR = "the monitor"  # fails as a whole

LATENCY_INTERVAL_SECONDS = 60.0


@dataclass
class _Window:
    """Sums of time and counts over the steps since the last record."""

    num_steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    num_examples: int = 0
    num_tokens: int = 0


class MonitorObserver(Observer):
    """An observer that starts and stops a monitor, and passes each logged step to it.

    Args:
        monitor: this observer adds the probes `checkpoint_age_seconds` and
            `inference_latency_seconds` (of one forward pass over one example).
        adapter: the run's adapter, for measuring the latency. None: it is not measured.
        precision: the run's precision, for measuring the device's speed.
        start, stop: called at the start and end of the run.
    """

    def __init__(
        self,
        monitor: TrainingMonitor,
        adapter: ModelAdapter | None,
        precision: Precision,
        start: Callable[[], None] = do_nothing,
        stop: Callable[[], None] = do_nothing,
    ) -> None:
        self.monitor, self.adapter, self.precision = monitor, adapter, precision
        self.start, self.stop = start, stop
        self._window = _Window()
        self._step_started = 0.0
        self._waited = 0.0
        self._counted = (0, 0)  # examples and tokens
        self._saved_at: float | None = None
        self._latency: float | None = None
        self._next_latency = float("-inf")
        self._arithmetic: FlopsEstimate | None = None
        self._most_per_second: float | None = None
        self._best_effort = BestEffort(logger)
        monitor.probes["checkpoint_age_seconds"] = self._checkpoint_age
        monitor.probes["inference_latency_seconds"] = lambda: self._latency

    @property
    def _device(self) -> torch.device:
        if self.adapter is not None:
            return self.adapter.device
        return torch.device(self.precision.device_type)

    def train_start(self, state: TrainingState) -> None:
        self.monitor.step = state.step
        self._saved_at = time.monotonic()  # earlier state is already on disk
        self._counted = (state.num_examples, state.num_tokens)
        self._waited = state.data_wait_seconds
        self._best_effort.attempt(MONITOR, self.start)
        self._best_effort.attempt(MONITOR, self.monitor.start_monitoring)
        self._best_effort.attempt(MONITOR, lambda: self._measure_devices(state))

    def phase_start(self, state: TrainingState) -> None:
        """Update the FLOPs per token, because phases may train different parameters."""

        def count() -> None:
            self._arithmetic = arithmetic_of(state.model)

        self._best_effort.attempt(MONITOR, count)

    def step_start(self, state: TrainingState) -> None:
        self._step_started = time.perf_counter()

    def step_end(self, state: TrainingState) -> None:
        self.monitor.step = state.step
        waited = state.data_wait_seconds - self._waited
        self._waited = state.data_wait_seconds
        window = self._window
        window.num_steps += 1
        window.waited += waited
        window.seconds += waited + time.perf_counter() - self._step_started
        if state.metrics:
            self._best_effort.attempt(MONITOR, lambda: self._log(state))

    def eval_end(self, state: TrainingState) -> None:
        now = time.monotonic()
        if self.adapter is None or not state.batch or now < self._next_latency:
            return
        if self.adapter.training_config.compile_mode:  # it would compile for this shape, too
            return
        self._next_latency = now + LATENCY_INTERVAL_SECONDS
        adapter = self.adapter
        self._best_effort.attempt(MONITOR, lambda: self._measure_latency(adapter, state))

    def checkpoint_saved(self, state: TrainingState) -> None:
        self._saved_at = time.monotonic()

    def error(self, state: TrainingState) -> None:
        """Report the metrics of the step in which an error ended the run, if not yet reported."""
        if state.metrics and state.step != self.monitor.step:
            self._best_effort.attempt(MONITOR, lambda: self._log(state))

    def train_end(self, state: TrainingState) -> None:
        for stop in (self.monitor.stop_monitoring, self.stop):
            self._best_effort.attempt(MONITOR, stop, even_if_off=True)

    def _log(self, state: TrainingState) -> None:
        window, self._window = self._window, _Window()
        examples, tokens = self._counted
        self._counted = (state.num_examples, state.num_tokens)
        window.num_examples = max(0, state.num_examples - examples)
        window.num_tokens = max(0, state.num_tokens - tokens)
        seconds = window.seconds if window.num_steps and window.seconds > 0 else None
        self.monitor.log_training_metrics(
            TrainingMetrics(
                timestamp=time.time(),
                epoch=state.position.epoch,
                step=state.step,
                loss=state.loss,
                learning_rate=state.metrics["learning_rate"],
                batch_size=len(state.batch),
                gradient_norm=self._gradient_norm(state),
                seconds_per_step=seconds and seconds / window.num_steps,
                samples_per_second=seconds and window.num_examples / seconds,
                tokens_per_second=seconds and (window.num_tokens / seconds or None),
                model_flops_utilization=seconds and self._utilization(window),
                data_wait_percent=seconds and 100 * window.waited / seconds,
                memory_bytes=state.metrics.get("memory_bytes"),
                num_tied_steps=None if state.rewards is None else state.rewards.num_tied,
            )
        )

    def _gradient_norm(self, state: TrainingState) -> float | None:
        """Return the gradient norm, or None if it overflowed in fp16."""
        norm = state.metrics.get("grad_norm")
        is_overflow = norm is not None and not math.isfinite(norm)
        return None if is_overflow and self.precision.name == "fp16" else norm

    def _utilization(self, window: _Window) -> float | None:
        if self._arithmetic is None or not self._most_per_second:
            return None
        if not window.num_examples or not window.num_tokens:  # they were not counted
            return None
        speed, length = (
            window.num_tokens / window.seconds,
            window.num_tokens / window.num_examples,
        )
        reached = self._arithmetic.per_second(speed, length)
        # The measured maximum is too low if the machine was busy: a speed that is reached is
        # possible.
        self._most_per_second = max(self._most_per_second, reached)
        return reached / self._most_per_second

    def _measure_devices(self, state: TrainingState) -> None:
        """Measure this device's speed. All other processes are assumed to have equal devices."""
        of_one = measure_operations_per_second(self._device, self.precision.dtype)
        self._most_per_second = state.num_processes * of_one

    @torch.no_grad()
    def _measure_latency(self, adapter: ModelAdapter, state: TrainingState) -> None:
        """Time a forward pass over the first example of the last batch, after one warm-up pass."""
        if is_sharded(state.model):  # the other ranks do not take part
            return
        device = adapter.device
        with preserve(state.model, random=device, modes=True):
            state.model.eval()
            batch = adapter.prepare_batch(state.batch[:1])
            for _ in range(2):
                synchronize(device)
                started = time.perf_counter()
                with self.precision.autocast():
                    adapter.compute_loss(state.model, batch)
                synchronize(device)
                self._latency = time.perf_counter() - started

    def _checkpoint_age(self) -> float | None:
        return None if self._saved_at is None else time.monotonic() - self._saved_at


class RunLogObserver(Observer):
    """An observer that logs each start, evaluation, checkpoint and end of a run.

    Args:
        write: writes a record to the log, with secrets masked.
    """

    def __init__(self, write: Callable[[Mapping[str, object]], None]) -> None:
        self.write = write

    def train_start(self, state: TrainingState) -> None:
        begins = phrase("training.log_training_begins")
        self._log_event(begins, state, total_steps=state.total_steps)

    def phase_start(self, state: TrainingState) -> None:
        self._log_event(phrase("training.log_phase_begins"), state, phase=state.phase.name)

    def eval_end(self, state: TrainingState) -> None:
        self._log_event(phrase("training.log_evaluated"), state, **state.evaluation)

    def checkpoint_saved(self, state: TrainingState) -> None:
        saved = phrase("training.log_checkpoint_saved")
        self._log_event(saved, state, checkpoint=str(state.checkpoint))

    def error(self, state: TrainingState) -> None:
        self._log_event(phrase("training.error_ended_training"), state, error=repr(state.error))

    def train_end(self, state: TrainingState) -> None:
        self._log_event(
            phrase("training.training_ended"), state, loss=state.loss, reason=state.stop_message
        )

    def _log_event(self, what: str, state: TrainingState, **more: object) -> None:
        self.write({"message": what, "step": state.step, "epoch": state.position.epoch, **more})


logger = logging.getLogger(__name__)

CACHE_SECONDS = 60.0  # computing the cache's size reads many files, and it rarely changes


def monitoring_hooks(
    config: DeploymentConfig,
    run_directory: Path,
    adapter: ModelAdapter | None,
    precision: Precision,
    report: Callable[[str], None],
    probes: dict[str, Probe],
) -> list[Hook]:
    """Return the observers that monitor a run; none if monitoring is off.

    Args:
        adapter: the adapter of the run's model. None: another library runs the model.
        report: shows a line to the user.
        probes: functions, by key, whose values are added to each sample of the machine.
    """
    if not config.enable_monitoring:
        return []
    sinks = make_alert_sinks(config.monitor.alert_sinks, run_directory, report)
    cache_bytes = seldom(lambda: TokenCache(config.cache).size_bytes(), CACHE_SECONDS)
    made = [make(config, run_directory) for make in all_of("watchers")]
    monitor = TrainingMonitor(
        run_directory,
        thresholds=_limits(config.monitor.thresholds, precision.device_type),
        sinks=sinks,
        interval_seconds=config.monitor.interval,
        probes={**probes, "cache_bytes": cache_bytes},
        watchers=[one for one in made if isinstance(one, Watcher)],
    )
    log = RunLog(run_directory)
    return [
        RunLogObserver(log.write),  # before the one that closes the log at the end
        MonitorObserver(monitor, adapter, precision, log.start, log.stop),
        *(one for one in made if isinstance(one, Observer)),
    ]


def _limits(limits: AlertThresholds, device_type: str) -> AlertThresholds:
    """Return the alert thresholds, but raise a default CPU threshold to 100% for CPU training."""
    is_default = limits.cpu_percent == AlertThresholds().cpu_percent
    return limits.copy_with(cpu_percent=100.0) if device_type == "cpu" and is_default else limits


def seldom(probe: Probe, seconds: float, clock: Callable[[], float] = time.monotonic) -> Probe:
    """Wrap `probe` so that it is called at most once every `seconds` seconds.

    Between two calls, the wrapper returns the last value.
    """
    newest: list[tuple[float, float | None]] = []

    def call() -> float | None:
        now = clock()
        if not newest or now - newest[0][0] >= seconds:
            newest[:] = [(now, probe())]
        return newest[0][1]

    return call
