"""Alerts to a webhook: Slack, Discord, or any address that takes JSON.

Sent by a thread of its own, so that a slow or dead address holds nobody up. The address is a
secret: it is never written and never shown.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from infrastructure.monitoring.watching.alert_queue import AlertQueue
from infrastructure.monitoring.watching.alerts import Alert

VARIABLE = "ALERT_WEBHOOK_URL"
TIMEOUT_SECONDS = 10.0
NUM_TRIES = 3
FIRST_WAIT_SECONDS = 1.0  # doubled after each try
LONGEST_WAIT_SECONDS = 30.0


class WebhookAlerts:
    """Posts each alert as JSON.

    Args:
        url: http or https.
        source: what the alerts are about, such as the run's name.
        first_wait_seconds: before a second try.

    Raises:
        ValueError: `url` is no web address; the text does not show it.
    """

    name = "webhook"

    def __init__(
        self, url: str, source: str = "", first_wait_seconds: float = FIRST_WAIT_SECONDS
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"{VARIABLE} is no web address: give the whole https://… that the service shows"
            )
        self._url, self._host, self.source = url, parts.hostname, source
        self.first_wait_seconds = first_wait_seconds
        self._queue = AlertQueue(self.name, self._post_patiently)

    def send(self, alert: Alert) -> None:
        """Hand `alert` over; returns at once."""
        self._queue.put(alert)

    def close(self) -> None:
        """Send what is waiting, for five seconds at most."""
        self._queue.close()

    def _post_patiently(self, alert: Alert) -> str:
        """Why it did not get there, or nothing."""
        wait_seconds = self.first_wait_seconds
        for left in reversed(range(NUM_TRIES)):
            try:
                self._post(alert)
                return ""
            except urllib.error.HTTPError as error:
                why, retry_after = f"it answered {error.code}", error.headers.get("Retry-After", "")
                error.close()
                may_retry = error.code == 429 or error.code >= 500
                wait_seconds = float(retry_after) if retry_after.isdigit() else wait_seconds
            except (OSError, http.client.HTTPException) as error:
                why, may_retry = f"it cannot be reached ({type(error).__name__})", True
            if not may_retry or not left:
                return why
            time.sleep(min(wait_seconds, LONGEST_WAIT_SECONDS))
            wait_seconds *= 2
        return ""

    def _post(self, alert: Alert) -> None:
        request = urllib.request.Request(
            self._url,
            data=json.dumps(payload(alert, self._host, self.source)).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "temper"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read()


def payload(alert: Alert, host: str, source: str) -> dict[str, object]:
    """What is posted: `text` for Slack, `content` for Discord, else the text and all values."""
    about = f"{source}: " if source else ""
    text = f"{about}{alert.severity} at step {alert.step}: {alert.message}"
    if host.endswith("slack.com"):
        return {"text": text}
    if host.endswith(("discord.com", "discordapp.com")):
        return {"content": text}
    values = {**alert.record(), "value": _json_number(alert.value)}
    return {"text": text, "source": source, **values}


def _json_number(value: float) -> float | str:
    return value if value - value == 0 else str(value)
