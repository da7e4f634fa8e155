"""Destinations of alerts: the console, the log, and those that features and users add.

To add a destination, call `register_alert_sink(name, class)`, declare an entry point in the group
"temper.alert_sinks", or set its address: `monitor.alert_sinks: [module:Class]`.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from infrastructure.config import registries
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.console_log import SHOWN
from infrastructure.core.messages import phrase
from infrastructure.core.registry import Registry
from infrastructure.monitoring.watching.alerts import Alert, Severity

logger = logging.getLogger(__name__)

LOG_LEVELS: dict[Severity, int] = {
    "info": logging.DEBUG,  # no action needed; it is in logs/system/alerts.jsonl
    "warning": logging.WARNING,
    "critical": logging.ERROR,
}


class AlertSink(Protocol):
    """A destination of alerts.

    It is constructed with the run's directory, and always called from the same thread. If it raises
    an error, it is not called again. A sink that sends to another machine may have an attribute
    `lost`: the number of alerts that were not delivered, and the reason why the last one was not.
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


ALERT_SINKS: Registry[Callable[[Path], AlertSink]] = registries.ALERT_SINKS
ALERT_SINKS.provide(
    {"console": lambda _run_directory: ConsoleAlerts(), "log": lambda _run_directory: LogAlerts()},
    AlertSink,
)


def register_alert_sink(name: str, sink: Callable[[Path], AlertSink]) -> None:
    """Register `sink` as a destination for alerts, for use in `monitor.alert_sinks: [name]`.

    `sink(run_directory)` creates the destination. It takes precedence over a built-in destination
    of that name.

    Raises:
        ValueError: if another custom sink has the name, or `sink` lacks a method.
    """
    ALERT_SINKS.register(name, sink)


def make_alert_sinks(
    names: list[str], run_directory: Path, report: Callable[[str], None] = print
) -> list[AlertSink]:
    """Create the destinations for the alerts of a run that have these names.

    Args:
        report: a function that shows a line to the user.

    Raises:
        ValueError: if a name is unknown, or a sink cannot be used.
    """
    sinks: list[AlertSink] = [ALERT_SINKS.make(name, run_directory) for name in names]
    for sink in sinks:
        if isinstance(sink, ConsoleAlerts):
            sink.report = report
        elif isinstance(sink, LogAlerts):
            sink.is_shown = "console" in names
    return sinks


def check_alert_sinks(config: DeploymentConfig) -> None:
    """Check that the alert sinks of a run can be used.

    Raises:
        ValueError: if a name is unknown, or a sink cannot be used.
        MissingPackageError: if a sink needs a package that is not installed.
    """
    if config.enable_monitoring:
        ALERT_SINKS.check_usable(config.monitor.alert_sinks)
