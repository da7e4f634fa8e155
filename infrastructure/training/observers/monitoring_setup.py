"""Setup of a run's monitoring: monitor, alert sinks, run log, Prometheus and profiler."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed
from infrastructure.data.store.token_cache import TokenCache
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.logging_config import RunLog
from infrastructure.monitoring.prometheus import PrometheusEndpoint
from infrastructure.monitoring.training_monitor import Probe, TrainingMonitor
from infrastructure.monitoring.watching.alert_sinks import (
    AlertSink,
    check_alert_sinks,
    make_alert_sinks,
)
from infrastructure.training.core.precision import Precision
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.metrics.sinks import TensorBoardSink
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.observers.monitor_observer import MonitorObserver, RunLogObserver
from infrastructure.training.observers.profiler import ProfilerObserver

logger = logging.getLogger(__name__)

CACHE_SECONDS = 60.0  # computing the cache's size reads many files, and it rarely changes


def check_watching(config: DeploymentConfig) -> None:
    """Raise ValueError if the configured alert sinks are invalid."""
    if config.enable_monitoring:
        check_alert_sinks(config.monitor.alert_sinks)


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
    sinks = make_alert_sinks(config.monitor.alert_sinks, report, run_directory.name)
    watching = RunMonitoring(config, run_directory, sinks, probes, precision.device_type)
    hooks: list[Hook] = [
        RunLogObserver(watching.log.write),  # before the one that closes the log at the end
        MonitorObserver(watching.monitor, adapter, precision, watching.start, watching.stop),
    ]
    if config.monitor.profile_steps:
        hooks.append(ProfilerObserver(run_directory, config.monitor.profile_steps))
    return hooks


def _limits(limits: AlertThresholds, device_type: str) -> AlertThresholds:
    """Return the alert thresholds, but raise a default CPU threshold to 100 % for CPU training."""
    is_default = limits.cpu_percent == AlertThresholds().cpu_percent
    return limits.copy_with(cpu_percent=100.0) if device_type == "cpu" and is_default else limits


class RunMonitoring:
    """The monitor of one run, with its log, Prometheus endpoint and TensorBoard output."""

    def __init__(
        self,
        config: DeploymentConfig,
        run_directory: Path,
        sinks: list[AlertSink],
        probes: dict[str, Probe],
        device_type: str,
    ) -> None:
        self.config, self.run_directory = config, run_directory
        self.log = RunLog(run_directory)
        self._endpoint: PrometheusEndpoint | None = None
        self._tensorboard = self._make_tensorboard()
        monitor = config.monitor
        self.monitor = TrainingMonitor(
            run_directory,
            thresholds=_limits(monitor.thresholds, device_type),
            sinks=sinks,
            interval_seconds=monitor.interval,
            probes={**probes, "cache_bytes": seldom(self._cache_bytes, CACHE_SECONDS)},
            on_sample=None if self._tensorboard is None else self._draw,
        )

    def start(self) -> None:
        """Open the run's log and serve Prometheus; if the address is in use, only warn."""
        self.log.start()
        address = self.config.monitor.prometheus
        if address is not None:
            try:
                name = self.run_directory.name
                self._endpoint = PrometheusEndpoint(self.monitor, name, address)
            except OSError as error:
                logger.warning(
                    phrase("training.prometheus_unavailable", address=address, error=error)
                )

    def stop(self) -> None:
        """Stop everything that `start` started."""
        if self._endpoint is not None:
            self._endpoint.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        self.log.stop()

    def _cache_bytes(self) -> float:
        return TokenCache(self.config.cache).size_bytes()

    def _make_tensorboard(self) -> TensorBoardSink | None:
        if "tensorboard" not in self.config.training.metrics_sinks:
            return None
        if not is_installed("tensorboard"):  # the metrics sink reports it
            return None
        return TensorBoardSink(self.run_directory / "tensorboard" / "machine")

    def _draw(self, sample: Record) -> None:
        """Write a sample of the machine into the separate TensorBoard run `machine`."""
        assert self._tensorboard is not None
        gpus = {f"gpu{g['index']}_{k}": v for g in sample["gpus"] for k, v in g.items()}
        numbers: JsonObject = {**sample, **gpus, "kind": "machine"}
        numbers.pop("time")
        self._tensorboard.write(numbers)


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
