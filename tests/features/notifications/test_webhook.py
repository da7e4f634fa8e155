"""Alerts over real HTTP to a server on this machine."""

import logging
import threading
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.notifications.alert_queue import MAX_WAITING
from infrastructure.features.notifications.webhook import VARIABLE, payload
from infrastructure.monitoring.watching.alerts import Alert
from tests.deployment.runs import deploy, small_settings
from tests.features.notifications.webhook_server import alerts_to, webhook_server


def alert(number: int = 0, value: float = 91.5) -> Alert:
    return Alert(
        time=1000.0,
        step=number,
        rule="memory_percent",
        subject="",
        state="raised",
        severity="critical",
        value=value,
        limit=85.0,
        message="memory is 92 % full",
    )


def test_an_alert_arrives_with_all_its_values() -> None:
    with webhook_server() as server:
        sink = alerts_to(server.url, "run-7")
        sink.send(alert(3))
        sink.close()
    (received,) = server.received
    assert received["text"] == "run-7: critical at step 3: memory is 92 % full"
    assert (received["rule"], received["value"], received["limit"]) == (
        "memory_percent",
        91.5,
        85.0,
    )


def test_sending_never_waits_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    sink = alerts_to("http://127.0.0.1:9/")  # no server listens there
    monkeypatch.setattr(sink, "_post", lambda _: answers.wait(60))
    for number in range(1000):
        sink.send(alert(number))
    assert sink.lost[0] >= 1000 - MAX_WAITING - 1, "the first one is still on its way"
    answers.set()
    sink.close()


@pytest.mark.parametrize("refusals", [[500], [429, 503]])
def test_a_server_that_is_busy_is_tried_again(refusals: list[int]) -> None:
    with webhook_server() as server:
        server.answers = list(refusals)
        sink = alerts_to(server.url)
        sink.send(alert(1))
        sink.close()
    assert len(server.received) == len(refusals) + 1


def test_what_is_refused_for_good_is_reported_once_and_never_shows_the_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with webhook_server() as server, caplog.at_level(logging.WARNING):
        server.answers = [404, 404]
        sink = alerts_to(server.url)
        sink.send(alert(1))
        sink.send(alert(2))
        sink.close()
    assert [r["step"] for r in server.received] == [1, 2]
    (message,) = caplog.messages
    assert message == "notifications.alert_not_delivered(sink=webhook, reason=it answered 404)"
    assert "SECRET" not in caplog.text


def test_a_dead_address_is_reported_by_its_kind_only(caplog: pytest.LogCaptureFixture) -> None:
    sink = alerts_to("http://127.0.0.1:9/SECRET")
    sink.send(alert())
    sink.close()
    assert len(caplog.messages) == 1
    assert "notifications.webhook_unreachable" in caplog.text
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize("url", ["hooks.slack.com/services/SECRET", "ftp://a/SECRET"])
def test_what_is_no_web_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"notifications\.webhook_not_a_url.*variable=ALERT_WEBHOOK_URL"
    ) as caught:
        alerts_to(url)
    assert "SECRET" not in str(caught.value)


def test_slack_and_discord_get_what_they_read() -> None:
    text = "run: critical at step 0: memory is 92 % full"
    assert payload(alert(), "hooks.slack.com", "run") == {"text": text}
    assert payload(alert(), "discord.com", "run") == {"content": text}


def test_a_value_that_json_has_not_is_text() -> None:
    assert payload(alert(value=float("nan")), "a", "run")["value"] == "nan"


def test_alerts_reach_a_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook_server() as server:
        monkeypatch.setenv(VARIABLE, server.url)
        monitor = {"alert_sinks": ["webhook"], "thresholds": {"gradient_norm": 1e-6}}
        run, _ = deploy(DeploymentConfig(**small_settings(tmp_path), monitor=monitor))
    (posted,) = [posted for posted in server.received if posted["rule"] == "gradient_norm"]
    assert posted["source"] == run.name
    written = "".join(path.read_text(errors="replace") for path in run.rglob("*.json*"))
    assert "SECRET" not in written


def test_a_webhook_without_its_address_is_reported_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ValueError, match=VARIABLE):
        deploy(DeploymentConfig(**small_settings(tmp_path), monitor={"alert_sinks": ["webhook"]}))
    assert not list((tmp_path / "runs").glob("*"))
