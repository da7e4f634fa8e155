"""Who is told of an alert, and how."""

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from infrastructure.monitoring.watching.alert_sinks import box, make_alert_sinks
from infrastructure.monitoring.watching.alerts import Alert, Severity
from tests.monitoring.webhook_server import webhook_server


def alert(severity: Severity = "warning", message: str = "a step takes 12.0 s") -> Alert:
    return Alert(1.0, 40, "training_time_per_step", "", "raised", severity, 12.0, 10.0, message)


def test_the_console_gets_a_line_for_what_a_person_should_act_on() -> None:
    lines: list[str] = []
    (console,) = make_alert_sinks(["console"], lines.append)
    console.send(alert("info"))
    console.send(alert("warning"))
    assert lines == ["ALERT (warning) at step 40: a step takes 12.0 s"]


@pytest.mark.parametrize(
    ("severity", "level"),
    [("info", logging.INFO), ("warning", logging.WARNING), ("critical", logging.ERROR)],
)
def test_the_log_gets_all_by_their_severity(
    caplog: pytest.LogCaptureFixture, severity: Severity, level: int
) -> None:
    (log,) = make_alert_sinks(["log"])
    with caplog.at_level(logging.INFO):
        log.send(alert(severity))
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (level, "alert training_time_per_step at step 40: a step takes 12.0 s")
    ]


def test_outside_of_a_notebook_there_is_no_box() -> None:
    assert [sink.name for sink in make_alert_sinks(["console", "log", "notebook"])] == [
        "console",
        "log",
    ]


def test_in_a_notebook_the_box_replaces_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    names = [sink.name for sink in make_alert_sinks(["console", "log", "notebook"])]
    assert names == ["log", "notebook"]
    assert [sink.name for sink in make_alert_sinks(["console"])] == ["console"]


def test_the_box_is_shown_by_ipython() -> None:
    program = (
        "from infrastructure.monitoring.watching.alert_sinks import NotebookAlerts\n"
        "from infrastructure.monitoring.watching.alerts import Alert\n"
        "NotebookAlerts().send(Alert(1, 4, 'r', '', 'raised', 'warning', 2, 1, 'slow'))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "HTML object" in shown.stdout  # what IPython shows of it without a browser


def test_text_in_a_box_is_no_markup() -> None:
    shown = box(alert(message="<script>"))
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_the_webhook_s_address_comes_from_the_environment() -> None:
    with webhook_server() as server:
        (webhook,) = make_alert_sinks(
            ["webhook"], source="run", environment={"ALERT_WEBHOOK_URL": server.url}
        )
        webhook.send(alert())
        webhook.close()
    assert len(server.received) == 1


def test_a_webhook_without_an_address_explains_what_to_do() -> None:
    with pytest.raises(ValueError, match="put its address into the variable ALERT_WEBHOOK_URL"):
        make_alert_sinks(["webhook"], environment={})


def test_a_misspelt_sink_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'console'"):
        make_alert_sinks(["consol"])
