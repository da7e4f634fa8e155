"""Alerts over real HTTP to a server on this machine."""

import email.utils
import logging
import threading
import time
import urllib.request
from email.message import Message
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.notifications import webhook
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
        message="memory is 92% full",
    )


def test_an_alert_arrives_with_all_its_values() -> None:
    with webhook_server() as server:
        sink = alerts_to(server.url, "run-7")
        sink.send(alert(3))
        sink.close()
    (received,) = server.received
    assert received == {
        "text": "run-7: critical at step 3: memory is 92% full",
        "source": "run-7",
        **alert(3).record(),
    }
    assert received["limit"] == 85.0
    assert server.paths == ["/hooks/SECRET"]


def test_a_post_gives_up_after_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, float]] = []

    def take(request: urllib.request.Request, timeout: float) -> BytesIO:
        sent.append((request, timeout))
        return BytesIO()

    monkeypatch.setattr(webhook, "_OPENER", SimpleNamespace(open=take))
    monkeypatch.setenv(VARIABLE, "https://a.example/SECRET")
    sink = webhook.WebhookAlerts(Path("runs/one"))
    assert (sink.first_wait_seconds, sink.deliver(alert())) == (1.0, "")
    [(request, timeout)] = sent
    assert (request.full_url, request.get_method(), timeout) == (
        *("https://a.example/SECRET", "POST", 10.0),
    )
    assert request.headers == {"Content-type": "application/json", "User-agent": "temper"}


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


def waits(answers: list[int | tuple[int, dict[str, str]]]) -> tuple[list[float], tuple[int, str]]:
    """The pauses before new tries, the first of 4 s, and what was lost, if a server answers so."""
    with webhook_server() as server:
        server.answers = list(answers)
        sink, paused = alerts_to(server.url, wait_seconds=4.0), list[float]()
        sink.pause = paused.append  # type: ignore[method-assign]
        sink.send(alert())
        sink.close()
        assert server.received == [server.received[0]] * len(server.received)
        assert len(server.received) == len(paused) + 1
    return paused, sink.lost


@pytest.mark.parametrize(
    ("answers", "paused", "lost"),
    [
        ([500], [4.0], (0, "")),
        ([500, 599, 503, 200], [4.0, 8.0], (1, "it answered 503")),
        ([499], [], (1, "it answered 499")),
        ([428], [], (1, "it answered 428")),
        ([(429, {"Retry-After": "7"}), 500], [7.0, 14.0], (0, "")),
        ([(503, {"Retry-After": "700"})], [30.0], (0, "")),
    ],
)
def test_a_try_is_repeated_after_the_wait_that_the_server_wants(
    answers: list[int | tuple[int, dict[str, str]]], paused: list[float], lost: tuple[int, str]
) -> None:
    assert waits(answers) == (paused, lost)


def test_an_alert_is_posted_again_where_the_same_host_points_to() -> None:
    with webhook_server() as server:
        elsewhere = server.url.replace("127.0.0.1", "localhost")
        server.answers = [(307, {"Location": "/other"}), 200, (302, {"Location": elsewhere})]
        sink = alerts_to(server.url)
        sink.send(alert(1))
        sink.send(alert(2))
        sink.close()
    assert [posted["step"] for posted in server.received] == [1, 1, 2]
    assert server.paths == ["/hooks/SECRET", "/other", "/hooks/SECRET"]
    redirects = f"notifications.webhook_redirects_elsewhere(variable={VARIABLE})"
    assert sink.lost == (1, f"it answered 302{redirects}")


@pytest.mark.parametrize(
    ("old", "new", "is_followed"),
    [
        ("http://a/x", "http://a/y", True),
        ("http://a/x", "https://a/x", True),
        ("http://a:80/x", "https://a:81/x", True),
        ("https://a/x", "http://a/x", False),
        ("http://a/x", "http://a:81/x", False),
        ("http://a/x", "http://b/x", False),
    ],
)
def test_no_other_host_gets_an_alert(old: str, new: str, is_followed: bool) -> None:
    request = urllib.request.Request(old, data=b"alert", headers={"A": "b"})
    handler = webhook._SameHostRedirects()
    then = handler.redirect_request(request, BytesIO(), 307, "", Message(), new)
    assert (then is not None) == is_followed
    if then is not None:
        sent = (then.full_url, then.data, then.headers, then.get_method())
        assert sent == (new, b"alert", {"A": "b"}, "POST")


def test_the_wait_that_a_server_wants_is_a_number_or_a_date() -> None:
    in_an_hour = email.utils.formatdate(time.time() + 3600, usegmt=True)
    given = [None, " 12 ", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", in_an_hour]
    *seconds, last = (webhook._seconds_until(text, 3.5) for text in given)
    assert seconds == [3.5, 12.0, 3.5, 0.0]
    assert last == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("hooks.slack.com/services/SECRET", "not_a_url"),
        ("ftp://a/SECRET", "not_a_url"),
        ("http:///SECRET", "not_a_url"),
        ("https://a:99999/SECRET", "not_a_url"),
        ("https://a/SECRET SECRET", "invalid_character"),
        ("https://a/SECRET\x7f", "invalid_character"),
        ("https://a/SECRETé", "invalid_character"),
        ("https://SECRET@a/", "has_user_name"),
    ],
)
def test_what_is_no_web_address_is_refused_without_showing_it(
    url: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, url)
    for use in (webhook.WebhookAlerts.check_usable, lambda: alerts_to(url)):
        with pytest.raises(ValueError, match=rf"webhook_{code}\(variable={VARIABLE}") as caught:
            use()
        assert "SECRET" not in str(caught.value)


def test_slack_and_discord_get_what_they_read() -> None:
    text = "run: critical at step 0: memory is 92% full"
    assert payload(alert(), "hooks.slack.com", "run") == {"text": text}
    for host in ("discord.com", "ptb.discord.com", "discordapp.com"):
        assert payload(alert(), host, "run") == {"content": text}


def test_a_value_that_json_has_not_is_text() -> None:
    values = [
        payload(alert(value=float(text)), "a", "run")["value"] for text in ("nan", "-inf", "2")
    ]
    assert values == ["nan", "-inf", 2.0]


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
