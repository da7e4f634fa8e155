"""The endpoint as Prometheus reads it, and the dashboard against what the endpoint gives."""

import json
import logging
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.metric_exporters import prometheus
from infrastructure.features.metric_exporters.prometheus import MonitorCollector, PrometheusEndpoint
from infrastructure.monitoring.training_monitor import TrainingMetrics, TrainingMonitor
from tests.deployment.runs import deploy, small_settings
from tests.monitoring.scripted_machine import Moments, ScriptedGpus, ScriptedMachine

DASHBOARD_FILE = Path(prometheus.__file__).with_name("grafana_dashboard.json")
ALL_NUMBERS = {
    "gradient_norm": 1e3,  # and an alert
    "seconds_per_step": 0.5,
    "samples_per_second": 16.0,
    "tokens_per_second": 4000.0,
    "model_flops_utilization": 0.4,
    "data_wait_percent": 2.0,
    "memory_bytes": 1e9,
}
PROBES = (
    "checkpoint_age_seconds",
    "backup_age_seconds",
    "cache_bytes",
    "inference_latency_seconds",
)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def address() -> Iterator[str]:
    """Of an endpoint that tells a monitor's numbers."""
    machine = ScriptedMachine()
    machine.set(network_received_bytes_per_second=1.0, network_sent_bytes_per_second=2.0)
    monitor = TrainingMonitor(
        sinks=[],
        machine=machine,
        gpus=ScriptedGpus(),
        clock=Moments(),
        probes={name: lambda: 3.0 for name in PROBES},
    )
    monitor.log_training_metrics(TrainingMetrics(1.0, 0, 12, 2.5, 0.001, 8, **ALL_NUMBERS))
    monitor.sample()
    address = free_address()
    endpoint = PrometheusEndpoint("run-1", address)
    endpoint.start(monitor)
    yield address
    endpoint.stop()


def scrape(address: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_prometheus_reads_the_newest_numbers(address: str) -> None:
    found = scrape(address)
    assert found["temper_loss"] == [({"run": "run-1"}, 2.5)]
    assert found["temper_step"] == [({"run": "run-1"}, 12.0)]
    assert found["temper_cpu_percent"] == [({"run": "run-1"}, 20.0)]
    assert found["temper_gpu_temperature_celsius"] == [
        ({"run": "run-1", "gpu": "0", "name": "Tesla T4"}, 60.0)
    ]
    assert found["temper_alerts_total"] == [({"run": "run-1", "rule": "gradient_norm"}, 1.0)]
    opened = {"run": "run-1", "rule": "gradient_norm", "subject": ""}
    assert found["temper_alert_open"] == [(opened, 1.0)]


def test_each_number_of_each_gpu_has_its_labels() -> None:
    gpus = [
        {"index": 1, "name": "B", "memory_bytes": 5, "power_watts": None},
        {"index": 0, "name": "A", "power_watts": 70.0, "memory_bytes": 7},
    ]
    alerts = {"open": [], "raised": {"gpu_memory": 3, "cpu": 1}}
    monitor: Any = SimpleNamespace(
        latest=lambda: ({"time": 9.0, "cpu_percent": 2.5, "note": "x", "gpus": gpus}, None),
        step=4,
        get_performance_summary=lambda: {"alerts": alerts},
    )
    families = MonitorCollector(monitor, "r").collect()
    first, second = ({"run": "r", "gpu": n, "name": name} for n, name in (("0", "A"), ("1", "B")))
    assert [
        (one.name, one.type, one.documentation, [(s.labels, s.value) for s in one.samples])
        for one in families
    ] == [
        ("temper_step", "gauge", "Step.", [({"run": "r"}, 4)]),
        ("temper_cpu_percent", "gauge", "Cpu percent.", [({"run": "r"}, 2.5)]),
        ("temper_gpu_memory_bytes", "gauge", "Gpu memory bytes.", [(second, 5), (first, 7)]),
        ("temper_gpu_power_watts", "gauge", "Gpu power watts.", [(first, 70.0)]),
        ("temper_alert_open", "gauge", "Alert open.", []),
        (
            *("temper_alerts", "counter", "Alerts raised."),
            [({"run": "r", "rule": "gpu_memory"}, 3), ({"run": "r", "rule": "cpu"}, 1)],
        ),
    ]


def test_the_endpoint_of_a_run_is_what_the_configuration_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert prometheus.endpoint(DeploymentConfig(), tmp_path) is None
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.INFO):
        port = taken.getsockname()[1]
        config = DeploymentConfig(monitor={"prometheus": port})
        found = prometheus.endpoint(config, tmp_path / "a-run")
        assert found is not None
        assert (found.run, found.address) == ("a-run", f"127.0.0.1:{port}")
        found.start(TrainingMonitor(sinks=[]))
        found.stop()
        free = free_address()
        other = PrometheusEndpoint("run", free)
        other.start(TrainingMonitor(sinks=[]))
        other.stop()
    refused, opened = caplog.messages
    unavailable = f"metric_exporters.prometheus_unavailable(address=127.0.0.1:{port}, error=["
    assert refused.startswith(unavailable)
    assert opened == f"metric_exporters.prometheus_address(address={free})"


def test_every_number_of_the_dashboard_is_there(address: str) -> None:
    dashboard = json.loads(DASHBOARD_FILE.read_text())
    shown = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"temper_\w+", target["expr"])
    }
    assert len(shown) > 25
    assert shown <= set(scrape(address))


def test_the_dashboard_has_what_grafana_requires() -> None:
    """Its import form refuses a file without these; the source of data is chosen there."""
    dashboard = json.loads(DASHBOARD_FILE.read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(dashboard)
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert variables == ["datasource", "run"]
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"


def test_a_closed_endpoint_frees_its_address() -> None:
    monitor, address = TrainingMonitor(sinks=[]), free_address()
    for _ in range(2):
        endpoint = PrometheusEndpoint("run", address)
        endpoint.start(monitor)
        assert "temper_step" in scrape(address)  # before the first sample too
        endpoint.stop()
    with pytest.raises(urllib.error.URLError):
        scrape(address)


def test_a_taken_address_for_prometheus_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        run, _ = deploy(
            DeploymentConfig(
                **small_settings(tmp_path), monitor={"prometheus": taken.getsockname()[1]}
            )
        )
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert "metric_exporters.prometheus_unavailable" in caplog.text


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *((9400, "127.0.0.1:9400"), (" 09400 ", "127.0.0.1:9400"), ("0.0.0.0:80", "0.0.0.0:80")),
        *((1, "127.0.0.1:1"), (65535, "127.0.0.1:65535"), ("[::1]:80", "[::1]:80"), (None, None)),
    ],
)
def test_a_port_alone_is_loopback_s(given: object, meant: str | None) -> None:
    assert DeploymentConfig(monitor={"prometheus": given}).value("monitor.prometheus") == meant


@pytest.mark.parametrize("wrong", ["x", 0, 65536, True, "a:b", "host:", "::1:80"])
def test_what_is_no_address_is_refused(wrong: object) -> None:
    refused = r"config\.wrong_value\(setting=monitor\.prometheus, allowed=a port"
    with pytest.raises(ConfigurationError, match=refused):
        DeploymentConfig(monitor={"prometheus": wrong})
