"""Alerts to phones, chats and e-mail: everything that the package apprise supports.

The addresses contain tokens and passwords, so they are read from an environment variable, and never
written or shown.
"""

import logging
from pathlib import Path
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import refuse_missing, require
from infrastructure.features.notifications.alert_queue import QueuedSink, secret
from infrastructure.monitoring.watching.alerts import Alert, Severity

VARIABLE = "APPRISE_URLS"
KINDS: dict[Severity, str] = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseAlerts(QueuedSink):
    """A sink that sends each alert that requires action by the user to all configured addresses.

    Args:
        run_directory: the directory of the run, whose name is the source of the alerts.

    Raises:
        ValueError: if the environment has no addresses, or apprise does not support one of them;
            the message does not show the address.
        MissingPackageError: if apprise is not installed; the message names the pip command.
    """

    name = "apprise"

    def __init__(self, run_directory: Path) -> None:
        super().__init__()
        addresses = secret(self.name, VARIABLE)
        apprise = require("apprise", "notifications.apprise_sink")
        logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its warnings contain addresses
        self.source = run_directory.name
        self._addresses: Any = apprise.Apprise()
        for number, address in enumerate(addresses.split(), start=1):
            if not self._addresses.add(address):
                raise InputError(
                    "notifications.unknown_apprise_address", number=number, variable=VARIABLE
                )

    @classmethod
    def check_usable(cls) -> None:
        """Raise an error if the environment has no addresses, or apprise is not installed."""
        secret(cls.name, VARIABLE)
        refuse_missing("apprise", "notifications.apprise_sink")

    def send(self, alert: Alert) -> None:
        """Add `alert` to the queue and return at once."""
        if alert.severity != "info":
            super().send(alert)

    def deliver(self, alert: Alert) -> str:
        is_sent = self._addresses.notify(
            body=f"step {alert.step}: {alert.message}",
            title=f"{self.source}: {alert.severity}",
            notify_type=KINDS[alert.severity],
        )
        return "" if is_sent else phrase("notifications.apprise_address_rejected")
