"""Alerts to phones, chats and e-mail: whatever the package apprise has an address for.

The addresses hold tokens and passwords: they are read from a variable, never written, never shown.
"""

import logging
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.monitoring.watching.alert_queue import AlertQueue
from infrastructure.monitoring.watching.alerts import Alert, Severity

VARIABLE = "APPRISE_URLS"
KINDS: dict[Severity, str] = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseAlerts:
    """Sends each alert that a person should act on to all addresses.

    Args:
        addresses: as apprise writes them, with spaces between: `ntfy://topic mailto://…`.
        source: what the alerts are about, such as the run's name.

    Raises:
        ValueError: apprise knows no such address; the text does not show it.
        MissingPackageError: apprise is not installed; the text has the pip line.
    """

    name = "apprise"

    def __init__(self, addresses: str, source: str = "") -> None:
        apprise = require("apprise", "the alert sink 'apprise'")
        logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its warnings hold addresses
        self.source = source
        self._addresses: Any = apprise.Apprise()
        for number, address in enumerate(addresses.split(), start=1):
            if not self._addresses.add(address):
                raise InputError(
                    "monitoring.unknown_apprise_address", number=number, variable=VARIABLE
                )
        self._queue = AlertQueue(self.name, self._post)

    def send(self, alert: Alert) -> None:
        """Hand `alert` over; returns at once."""
        if alert.severity != "info":
            self._queue.put(alert)

    def close(self) -> None:
        """As `AlertQueue.close`."""
        self._queue.close()

    @property
    def lost(self) -> tuple[int, str]:
        """How many alerts did not get there, and why the last did not."""
        return self._queue.num_lost, self._queue.why_lost

    def _post(self, alert: Alert) -> str:
        try:
            is_sent = self._addresses.notify(
                body=f"step {alert.step}: {alert.message}",
                title=f"{self.source or 'Temper'}: {alert.severity}",
                notify_type=KINDS[alert.severity],
            )
        except Exception as error:  # of the address's own library; its text may hold the address
            return f"it failed ({type(error).__name__})"
        return "" if is_sent else phrase("monitoring.apprise_address_rejected")
