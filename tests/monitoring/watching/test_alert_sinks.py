"""Who is told of an alert, and how."""

import logging
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.console_log import is_for_people
from infrastructure.monitoring.watching.alert_sinks import check_alert_sinks, make_alert_sinks
from infrastructure.monitoring.watching.alerts import Alert, Severity

RUN = Path("runs/run-7")


def alert(severity: Severity = "warning", message: str = "a step takes 12.0 s") -> Alert:
    return Alert(1.0, 40, "training_time_per_step", "", "raised", severity, 12.0, 10.0, message)


def test_the_console_gets_a_line_for_what_a_person_should_act_on() -> None:
    lines: list[str] = []
    (console,) = make_alert_sinks(["console"], RUN, lines.append)
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
    (log,) = make_alert_sinks(["log"], RUN)
    with caplog.at_level(logging.DEBUG):
        log.send(alert(severity))
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (
            level,
            "monitoring.alert_logged(rule=training_time_per_step, step=40,"
            " message=a step takes 12.0 s)",
        )
    ]


def test_a_misspelt_sink_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=console\)"):
        make_alert_sinks(["consol"], RUN)


def test_sinks_are_checked_where_alerts_can_be_raised() -> None:
    config = DeploymentConfig(monitor={"alert_sinks": ["tests.nowhere:Sink"]})
    with pytest.raises(ValueError, match=r"tests\.nowhere"):
        check_alert_sinks(config)
    config.enable_monitoring = False
    check_alert_sinks(config)


@pytest.mark.parametrize(("names", "is_shown"), [(["console", "log"], False), (["log"], True)])
def test_an_alert_is_on_the_screen_once(
    caplog: pytest.LogCaptureFixture, names: list[str], is_shown: bool
) -> None:
    lines: list[str] = []
    for sink in make_alert_sinks(names, RUN, lines.append):
        sink.send(alert("critical"))
    (record,) = caplog.records
    assert is_for_people(record) is is_shown
    assert len(lines) == 1 - is_shown
