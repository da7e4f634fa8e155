"""Destinations of alerts: the console, the log, a webhook, apprise.

To add a destination, call `register_alert_sink(name, class)`, declare an entry point in the group
"temper.alert_sinks", or set its address: `monitor.alert_sinks: [module:Class]`.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from infrastructure.config import registries
from infrastructure.core.console_log import SHOWN
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import refuse_missing
from infrastructure.core.registry import Registry
from infrastructure.monitoring.watching.alerts import Alert, Severity
from infrastructure.monitoring.watching.apprise_alerts import VARIABLE as APPRISE
from infrastructure.monitoring.watching.apprise_alerts import AppriseAlerts
from infrastructure.monitoring.watching.webhook import VARIABLE, WebhookAlerts, check_address

logger = logging.getLogger(__name__)

LOG_LEVELS: dict[Severity, int] = {
    "info": logging.DEBUG,  # no action needed; it is in logs/system/alerts.jsonl
    "warning": logging.WARNING,
    "critical": logging.ERROR,
}


class AlertSink(Protocol):
    """A destination of alerts.

    A sink is always called from the same thread. If it raises an error, it is not called again. A
    sink that sends to another machine may have an attribute `lost`: the number of alerts that were
    not delivered, and the reason why the last one was not.
    """

    name: str

    def send(self, alert: Alert) -> None: ...

    def close(self) -> None: ...


class ConsoleAlerts:
    """A sink that prints a line, with `report`, for each alert on which the user should act."""

    name = "console"

    def __init__(self, report: Callable[[str], None] = print) -> None:
        self.report = report

    def send(self, alert: Alert) -> None:
        if alert.severity != "info":
            self.report(
                phrase(
                    "monitoring.alert_line",
                    severity=alert.severity,
                    step=alert.step,
                    message=alert.message,
                )
            )

    def close(self) -> None: ...


class LogAlerts:
    """A sink that writes alerts to Python's logging, at the level debug, warning or error.

    Args:
        is_shown: whether another sink already shows the alert on the screen. The log record then
            goes only to files.
    """

    name = "log"

    def __init__(self, is_shown: bool = False) -> None:
        self.is_shown = is_shown

    def send(self, alert: Alert) -> None:
        level = LOG_LEVELS[alert.severity]
        text = phrase(
            "monitoring.alert_logged", rule=alert.rule, step=alert.step, message=alert.message
        )
        logger.log(level, "%s", text, extra={SHOWN: self.is_shown})

    def close(self) -> None: ...


ALERT_SINKS: Registry[Callable[[], AlertSink]] = registries.ALERT_SINKS
ALERT_SINKS.provide({}, AlertSink)  # `make_alert_sinks` creates the built-in ones


def register_alert_sink(name: str, sink: Callable[[], AlertSink]) -> None:
    """Register `sink` as a destination for alerts, for use in `monitor.alert_sinks: [name]`.

    `sink` creates the destination. It takes precedence over a built-in destination of that name.

    Raises:
        ValueError: if another custom sink has the name, or `sink` lacks a method.
    """
    ALERT_SINKS.register(name, sink)


def make_alert_sinks(
    names: Iterable[str],
    report: Callable[[str], None] = print,
    source: str = "",
    environment: Mapping[str, str] = os.environ,
) -> list[AlertSink]:
    """Create the destinations for alerts that have these names.

    Args:
        report: a function that shows a line to the user.
        source: the subject of the alerts, such as the run's name.

    Raises:
        ValueError: if a name is unknown, or an address is missing.
    """
    chosen = list(names)
    ours: dict[str, Callable[[], AlertSink]] = {
        "console": lambda: ConsoleAlerts(report),
        "log": lambda: LogAlerts(is_shown="console" in chosen),
        "webhook": lambda: WebhookAlerts(_secret(environment, "webhook", VARIABLE), source),
        "apprise": lambda: AppriseAlerts(_secret(environment, "apprise", APPRISE), source),
    }
    return [
        ours[name]() if name in ours and not ALERT_SINKS.is_own(name) else ALERT_SINKS.make(name)
        for name in chosen
    ]


def check_alert_sinks(names: Iterable[str], environment: Mapping[str, str] = os.environ) -> None:
    """Check that these sinks can be used.

    Raises:
        ValueError: if a name is unknown, an address is missing or cannot be posted to, or a custom
            sink cannot be used.
        MissingPackageError: if apprise is needed and not installed.
    """
    for name in names:
        if ALERT_SINKS.is_own(name) or name not in ALERT_SINKS.built_in:
            ALERT_SINKS.get(name)
        elif name == "webhook":
            check_address(_secret(environment, name, VARIABLE))
        elif name == "apprise":
            _secret(environment, name, APPRISE)
            refuse_missing("apprise", "monitoring.apprise_sink")


def _secret(environment: Mapping[str, str], sink: str, variable: str) -> str:
    address = environment.get(variable, "")
    if not address:
        raise InputError("monitoring.alert_sink_without_address", sink=sink, variable=variable)
    return address
