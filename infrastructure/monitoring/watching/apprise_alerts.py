"""Alerts to phones, chats and e-mail: everything that the package apprise supports.

The addresses contain tokens and passwords, so they are read from an environment variable, and never
written or shown.
"""

import logging
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.monitoring.watching.alert_queue import QueuedSink
from infrastructure.monitoring.watching.alerts import Alert, Severity

VARIABLE = "APPRISE_URLS"
KINDS: dict[Severity, str] = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseAlerts(QueuedSink):
    """A sink that sends each alert that requires action by the user to all configured addresses.

    Args:
        addresses: the addresses in apprise's format, separated by spaces: `ntfy://topic
            mailto://…`.
        source: the subject of the alerts, such as the run's name.

    Raises:
        ValueError: if apprise does not support an address; the message does not show the address.
        MissingPackageError: if apprise is not installed; the message names the pip command.
    """

    name = "apprise"

    def __init__(self, addresses: str, source: str = "") -> None:
        super().__init__()
        apprise = require("apprise", "monitoring.apprise_sink")
        logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its warnings contain addresses
        self.source = source
        self._addresses: Any = apprise.Apprise()
        for number, address in enumerate(addresses.split(), start=1):
            if not self._addresses.add(address):
                raise InputError(
                    "monitoring.unknown_apprise_address", number=number, variable=VARIABLE
                )

    def send(self, alert: Alert) -> None:
        """Add `alert` to the queue and return at once."""
        if alert.severity != "info":
            super().send(alert)

    def deliver(self, alert: Alert) -> str:
        is_sent = self._addresses.notify(
            body=f"step {alert.step}: {alert.message}",
            title=f"{self.source or 'Temper'}: {alert.severity}",
            notify_type=KINDS[alert.severity],
        )
        return "" if is_sent else phrase("monitoring.apprise_address_rejected")
