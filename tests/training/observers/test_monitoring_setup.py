"""A real run that is watched, and one that is not."""

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.monitoring.logging_config import TRAINING_FILE
from infrastructure.monitoring.training_monitor import ALERTS_FILE, PERFORMANCE_FILE, SYSTEM_FILE
from infrastructure.training.observers.monitoring_setup import seldom
from tests.deployment.runs import deploy, losses, small_settings
from tests.monitoring.webhook_server import webhook_server


def config_of(folder: Path, monitor: dict[str, Any], **more: Any) -> DeploymentConfig:
    return DeploymentConfig(**{**small_settings(folder), "monitor": monitor, **more})


def test_a_run_is_watched_from_its_first_step_to_its_last(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, metrics_sinks=["jsonl", "tensorboard"])
    monitor = {"interval": 0.1, "profile_steps": 2, "thresholds": {"gradient_norm": 1e-6}}
    place = {"place": str(tmp_path / "place"), "finish_seconds": 120}
    run, lines = deploy(DeploymentConfig(**settings, monitor=monitor, backup=place))
    samples = read_metrics(run / SYSTEM_FILE)
    assert samples[-1]["step"] == losses(run)[-1][0]
    assert {"backup_age_seconds", "checkpoint_age_seconds", "cache_bytes"} <= set(samples[-1])
    assert samples[-1]["cache_bytes"] > 0
    speeds = read_metrics(run / PERFORMANCE_FILE)
    assert speeds[-1]["tokens_per_second"] > 0
    assert speeds[-1]["model_flops_utilization"] > 0
    alerts = read_metrics(run / ALERTS_FILE)
    assert [a["rule"] for a in alerts if a["rule"] == "gradient_norm"] == ["gradient_norm"]
    assert sum("monitoring.alert_line(severity=warning, " in line for line in lines) == 1
    log = (run / TRAINING_FILE).read_text()
    assert "training.log_training_begins()" in log
    assert "training.training_ended" in log
    page = (run / "report.html").read_text()
    assert "monitoring.system_metrics_heading" in page
    assert "monitoring.profile_heading" in page
    events = EventAccumulator(str(run / "tensorboard" / "machine")).Reload()
    assert "machine/cpu_percent" in events.Tags()["scalars"]


def test_alerts_reach_a_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook_server() as server:
        monkeypatch.setenv("ALERT_WEBHOOK_URL", server.url)
        monitor = {"alert_sinks": ["webhook"], "thresholds": {"gradient_norm": 1e-6}}
        run, _ = deploy(config_of(tmp_path, monitor))
    (posted,) = [posted for posted in server.received if posted["rule"] == "gradient_norm"]
    assert posted["source"] == run.name
    written = "".join(path.read_text(errors="replace") for path in run.rglob("*.json*"))
    assert "SECRET" not in written


def test_monitoring_that_is_off_watches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_MONITORING", "true")
    monkeypatch.chdir(tmp_path)
    config = load_config(keywords={**small_settings(tmp_path), "monitor": {"profile_steps": 2}})
    assert not config.enable_monitoring
    run, _ = deploy(config)
    assert not (run / "logs").exists()
    assert "monitoring.system_metrics_heading" not in (run / "report.html").read_text()


def test_a_taken_address_for_prometheus_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        run, _ = deploy(config_of(tmp_path, {"prometheus": taken.getsockname()[1]}))
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert "training.prometheus_unavailable" in caplog.text


def test_a_webhook_without_its_address_is_reported_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALERT_WEBHOOK_URL", raising=False)
    with pytest.raises(ValueError, match="ALERT_WEBHOOK_URL"):
        deploy(config_of(tmp_path, {"alert_sinks": ["webhook"]}))
    assert not list((tmp_path / "runs").glob("*"))


def test_a_costly_probe_is_read_seldom() -> None:
    moments, answers = iter([0.0, 30.0, 59.0, 60.0]), iter([1.0, 2.0])
    probe = seldom(lambda: next(answers), 60.0, clock=lambda: next(moments))
    assert [probe() for _ in range(4)] == [1.0, 1.0, 1.0, 2.0]
