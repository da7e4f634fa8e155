"""Alerts to a webhook: Slack, Discord, or any address that takes JSON.

Sent by a thread of its own, so that a slow or dead address holds nobody up. The address is a
secret: it is never written and never shown.
"""

import http.client
import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from infrastructure.monitoring.watching.alerts import Alert

logger = logging.getLogger(__name__)

VARIABLE = "ALERT_WEBHOOK_URL"
TIMEOUT_SECONDS = 10.0
NUM_TRIES = 3
FIRST_WAIT_SECONDS = 1.0  # doubled after each try
LONGEST_WAIT_SECONDS = 30.0
MAX_WAITING = 100  # alerts; more are dropped, and said so
CLOSE_SECONDS = 5.0


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
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MAX_WAITING)
        self._has_warned = False
        self._thread: threading.Thread | None = None

    def send(self, alert: Alert) -> None:
        """Hand `alert` over; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._post_all, name="webhook", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._warn_once("too many alerts wait for it")

    def close(self) -> None:
        """Send what is waiting, for five seconds at most."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                self._waiting.put(None, timeout=CLOSE_SECONDS)
            except queue.Full:
                return
            thread.join(CLOSE_SECONDS)

    def _post_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            self._post_patiently(alert)

    def _post_patiently(self, alert: Alert) -> None:
        wait_seconds = self.first_wait_seconds
        for left in reversed(range(NUM_TRIES)):
            try:
                return self._post(alert)
            except urllib.error.HTTPError as error:
                why, retry_after = f"it answered {error.code}", error.headers.get("Retry-After", "")
                error.close()
                may_retry = error.code == 429 or error.code >= 500
                wait_seconds = float(retry_after) if retry_after.isdigit() else wait_seconds
            except (OSError, http.client.HTTPException) as error:
                why, may_retry = f"it cannot be reached ({type(error).__name__})", True
            if not may_retry or not left:
                return self._warn_once(why)
            time.sleep(min(wait_seconds, LONGEST_WAIT_SECONDS))
            wait_seconds *= 2
        return None

    def _post(self, alert: Alert) -> None:
        request = urllib.request.Request(
            self._url,
            data=json.dumps(payload(alert, self._host, self.source)).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "temper"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read()

    def _warn_once(self, why: str) -> None:
        if not self._has_warned:
            logger.warning("an alert did not get to the webhook: %s", why)
        self._has_warned = True


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
