"""The alerts that apprise gets, recorded by a stand-in with the same signatures."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.core.errors import MissingPackageError
from infrastructure.features.notifications.apprise_alerts import VARIABLE, AppriseAlerts
from tests.monitoring.watching.test_alert_sinks import alert

SECRET = "ntfy://token-of-mine@host"


class StandInApprise:
    """A stand-in for apprise that accepts addresses that begin with ntfy:, and no others."""

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
    monkeypatch.setenv(VARIABLE, SECRET)
    return made


def test_apprise_gets_what_a_person_should_act_on(apprise: StandInApprise) -> None:
    sink = AppriseAlerts(Path("runs/my-run"))
    sink.send(alert("info"))
    sink.send(alert("critical"))
    sink.send(alert("warning", "full"))
    sink.close()
    assert apprise.sent == [
        ("my-run: critical", "step 40: a step takes 12.0 s", "failure"),
        ("my-run: warning", "step 40: full", "warning"),
    ]
    assert sink.lost == (0, "")


@pytest.mark.parametrize("fate", [False, RuntimeError(f"no way to {SECRET}")])
def test_an_address_of_apprise_is_never_shown(
    apprise: StandInApprise,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fate: bool | Exception,
) -> None:
    apprise.fate = fate
    sink = AppriseAlerts(Path("runs/my-run"))
    sink.send(alert())
    sink.close()
    why = "it failed (RuntimeError)" if fate else "notifications.apprise_address_rejected()"
    assert sink.lost == (1, why)
    assert "notifications.alert_not_delivered" in caplog.text
    assert "token-of-mine" not in caplog.text
    monkeypatch.setenv(VARIABLE, f"{SECRET} token-of-mine:wrong")
    with pytest.raises(
        ValueError, match=r"notifications\.unknown_apprise_address.*number=2.*variable=APPRISE_URLS"
    ) as raised:
        AppriseAlerts(Path("runs/my-run"))
    assert "token-of-mine" not in str(raised.value)


def test_apprise_needs_an_address_and_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    missing = r"sink_without_address\(sink=apprise, variable=APPRISE_URLS\)"
    with pytest.raises(ValueError, match=missing):
        AppriseAlerts.check_usable()
    monkeypatch.setenv(VARIABLE, SECRET)
    monkeypatch.setattr("infrastructure.core.optional.is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match="pip install apprise"):
        AppriseAlerts.check_usable()
