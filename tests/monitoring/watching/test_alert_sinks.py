"""Who is told of an alert, and how."""

import logging
import sys
from types import SimpleNamespace

import pytest

from infrastructure.core.console_log import is_for_people
from infrastructure.core.errors import MissingPackageError
from infrastructure.monitoring.watching.alert_sinks import (
    check_alert_sinks,
    make_alert_sinks,
)
from infrastructure.monitoring.watching.alerts import Alert, Severity
from tests.monitoring.webhook_server import webhook_server


def alert(severity: Severity = "warning", message: str = "a step takes 12.0 s") -> Alert:
    return Alert(1.0, 40, "training_time_per_step", "", "raised", severity, 12.0, 10.0, message)


def test_the_console_gets_a_line_for_what_a_person_should_act_on() -> None:
    lines: list[str] = []
    (console,) = make_alert_sinks(["console"], lines.append)
    console.send(alert("info"))
    console.send(alert("warning"))
    assert lines == [
        "monitoring.alert_line(severity=warning, step=40, message=a step takes 12.0 s)"
    ]


@pytest.mark.parametrize(
    ("severity", "level"),
    [("info", logging.DEBUG), ("warning", logging.WARNING), ("critical", logging.ERROR)],
)
def test_the_log_gets_all_by_their_severity(
    caplog: pytest.LogCaptureFixture, severity: Severity, level: int
) -> None:
    (log,) = make_alert_sinks(["log"])
    with caplog.at_level(logging.DEBUG):
        log.send(alert(severity))
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (
            level,
            "monitoring.alert_logged(rule=training_time_per_step, step=40,"
            " message=a step takes 12.0 s)",
        )
    ]


def test_the_webhook_s_address_comes_from_the_environment() -> None:
    with webhook_server() as server:
        (webhook,) = make_alert_sinks(
            ["webhook"], source="run", environment={"ALERT_WEBHOOK_URL": server.url}
        )
        webhook.send(alert())
        webhook.close()
    assert len(server.received) == 1


def test_a_webhook_without_an_address_explains_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"monitoring\.alert_sink_without_address.*variable=ALERT_WEBHOOK_URL"
    ):
        make_alert_sinks(["webhook"], environment={})


def test_a_misspelt_sink_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=console\)"):
        make_alert_sinks(["consol"])


SECRET = "ntfy://token-of-mine@host"


class StandInApprise:
    """What apprise does with addresses that begin with ntfy:, and no others."""

    fate: bool | Exception = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str]] = []

    def add(self, address: str) -> bool:
        return address.startswith("ntfy:")

    def notify(self, body: str, title: str, notify_type: str) -> bool:
        self.sent.append((title, body, notify_type))
        if isinstance(self.fate, Exception):
            raise self.fate
        return self.fate


@pytest.fixture
def apprise(monkeypatch: pytest.MonkeyPatch) -> StandInApprise:
    made = StandInApprise()
    module = SimpleNamespace(__spec__=SimpleNamespace(name="apprise"), Apprise=lambda: made)
    monkeypatch.setitem(sys.modules, "apprise", module)
    return made


def test_apprise_gets_what_a_person_should_act_on(apprise: StandInApprise) -> None:
    (sink,) = make_alert_sinks(["apprise"], source="my-run", environment={"APPRISE_URLS": SECRET})
    sink.send(alert("info"))
    sink.send(alert("critical"))
    sink.close()
    assert apprise.sent == [("my-run: critical", "step 40: a step takes 12.0 s", "failure")]


@pytest.mark.parametrize("fate", [False, RuntimeError(f"no way to {SECRET}")])
def test_an_address_of_apprise_is_never_shown(
    apprise: StandInApprise, caplog: pytest.LogCaptureFixture, fate: bool | Exception
) -> None:
    apprise.fate = fate
    (sink,) = make_alert_sinks(["apprise"], environment={"APPRISE_URLS": SECRET})
    sink.send(alert())
    sink.close()
    assert "monitoring.alert_not_delivered" in caplog.text
    assert "token-of-mine" not in caplog.text
    bad = {"APPRISE_URLS": f"{SECRET} token-of-mine:wrong"}
    with pytest.raises(
        ValueError, match=r"monitoring\.unknown_apprise_address.*number=2.*variable=APPRISE_URLS"
    ) as raised:
        make_alert_sinks(["apprise"], environment=bad)
    assert "token-of-mine" not in str(raised.value)


def test_apprise_needs_an_address_and_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = r"alert_sink_without_address\(sink=apprise, variable=APPRISE_URLS\)"
    with pytest.raises(ValueError, match=missing):
        check_alert_sinks(["apprise"], {})
    monkeypatch.setattr("infrastructure.core.optional.is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match="pip install apprise"):
        check_alert_sinks(["apprise"], {"APPRISE_URLS": SECRET})


@pytest.mark.parametrize(("names", "is_shown"), [(["console", "log"], False), (["log"], True)])
def test_an_alert_is_on_the_screen_once(
    caplog: pytest.LogCaptureFixture, names: list[str], is_shown: bool
) -> None:
    lines: list[str] = []
    for sink in make_alert_sinks(names, lines.append):
        sink.send(alert("critical"))
    (record,) = caplog.records
    assert is_for_people(record) is is_shown
    assert len(lines) == 1 - is_shown
