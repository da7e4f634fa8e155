"""A Prometheus endpoint with the monitor's newest values, at `http://HOST:PORT/metrics`.

Metric names are `temper_` plus the keys of samples and metrics. Values of a GPU have the labels
`gpu` and `name`. `grafana_dashboard.json` in this folder displays them. A request reads only values
that are already in memory, and measures nothing.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.monitoring.training_monitor import TrainingMonitor, Watcher

logger = logging.getLogger(__name__)

PREFIX = "temper_"
Rows = Sequence[tuple[tuple[str, ...], float]]  # label values, and the number


class MonitorCollector:
    """A collector that gives Prometheus a monitor's values on request.

    Args:
        run: the value of the label `run` on every metric.
    """

    def __init__(self, monitor: TrainingMonitor, run: str) -> None:
        self.monitor, self.run = monitor, run

    def collect(self) -> Iterator[Any]:
        core = require("prometheus_client.core", "metric_exporters.prometheus_endpoint")
        sample, metrics = self.monitor.latest()
        numbers = {"step": self.monitor.step, **sample}
        numbers |= metrics.values() if metrics is not None else {}
        for key, value in _numbers(numbers).items():
            yield self._gauge(core, key, [((), value)])
        yield from self._gpus(core, sample.get("gpus", []))
        yield from self._alerts(core)

    def _gpus(self, core: Any, gpus: list[Mapping[str, Any]]) -> Iterator[object]:
        keys = {key for gpu in gpus for key in _numbers(gpu) if key != "index"}
        for key in sorted(keys):
            rows = [((str(g["index"]), g["name"]), g[key]) for g in gpus if g.get(key) is not None]
            yield self._gauge(core, f"gpu_{key}", rows, ("gpu", "name"))

    def _alerts(self, core: Any) -> Iterator[Any]:
        alerts = self.monitor.get_performance_summary()["alerts"]
        opened = [((a["rule"], a["subject"]), 1.0) for a in alerts["open"]]
        yield self._gauge(core, "alert_open", opened, ("rule", "subject"))
        name = f"{PREFIX}alerts"
        family = core.CounterMetricFamily(name, "Alerts raised.", labels=("run", "rule"))
        for rule, count in alerts["raised"].items():
            family.add_metric((self.run, rule), count)
        yield family

    def _gauge(self, core: Any, key: str, rows: Rows, labels: Any = ()) -> Any:
        help_text = key.replace("_", " ").capitalize() + "."
        family = core.GaugeMetricFamily(PREFIX + key, help_text, labels=("run", *labels))
        for values, number in rows:
            family.add_metric((self.run, *values), number)
        return family


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {k: v for k, v in values.items() if isinstance(v, int | float) and k != "time"}


class PrometheusEndpoint(Watcher):
    """An endpoint that answers Prometheus in separate threads while a monitor is started.

    Args:
        run: the name of the run.
        address: `HOST:PORT`. If it is in use, or does not belong to this machine, the run continues
            without an endpoint.
    """

    def __init__(self, run: str, address: str) -> None:
        self.run, self.address = run, address
        self._server: Any = None

    def start(self, monitor: TrainingMonitor) -> None:
        """Begin to answer requests.

        Raises:
            MissingPackageError: if prometheus_client is not installed.
        """
        client = require("prometheus_client", "metric_exporters.prometheus_endpoint")
        registry = client.CollectorRegistry()
        registry.register(MonitorCollector(monitor, self.run))
        host, _, port = self.address.rpartition(":")
        try:
            self._server, self._thread = client.start_http_server(
                int(port), addr=host.strip("[]"), registry=registry
            )
        except OSError as error:
            unavailable = "metric_exporters.prometheus_unavailable"
            logger.warning(phrase(unavailable, address=self.address, error=error))
            return
        logger.info(phrase("metric_exporters.prometheus_address", address=self.address))

    def stop(self) -> None:
        """Stop answering requests, and free the address."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def endpoint(config: DeploymentConfig, run_directory: Path) -> PrometheusEndpoint | None:
    """Return the endpoint of a run, if the configuration has an address for it."""
    address = config.value("monitor.prometheus")
    return None if address is None else PrometheusEndpoint(run_directory.name, str(address))
