"""Alerts to a webhook: Slack, Discord, or any address that accepts JSON.

A thread sends the alerts, so that a slow or dead server delays nothing. The address is a secret and
is never written or shown.
"""

import email.utils
import http.client
import json
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.features.notifications.alert_queue import QueuedSink, secret
from infrastructure.monitoring.watching.alerts import Alert

VARIABLE = "ALERT_WEBHOOK_URL"
TIMEOUT_SECONDS = 10.0
NUM_TRIES = 3
FIRST_WAIT_SECONDS = 1.0  # doubled after each try
LONGEST_WAIT_SECONDS = 30.0


def _host_of(url: str) -> str:
    """Return the host of a webhook's address.

    Raises:
        ValueError: if `url` is not a web address, or cannot be posted to; the message does not show
            the address.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise InputError("notifications.webhook_not_a_url", variable=VARIABLE)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InputError("notifications.webhook_invalid_character", variable=VARIABLE)
    if parts.username is not None:
        raise InputError("notifications.webhook_has_user_name", variable=VARIABLE)
    return host


class _SameHostRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that posts an alert again if the server redirects the request to the same host.

    urllib itself would send a GET request without the alert. Redirects to another host are
    rejected, because no other host may receive the alert.
    """

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        is_same = (new.scheme, new.port) == (old.scheme, old.port)
        is_upgrade = (old.scheme, new.scheme) == ("http", "https")
        if new.hostname != old.hostname or not (is_same or is_upgrade):
            return None  # the redirect itself is the error
        return urllib.request.Request(
            newurl, data=req.data, headers=dict(req.headers), method="POST"
        )


_OPENER = urllib.request.build_opener(_SameHostRedirects)


class WebhookAlerts(QueuedSink):
    """A sink that posts each alert as JSON.

    Args:
        run_directory: the directory of the run, whose name is the source of the alerts.
        first_wait_seconds: the wait before the second attempt.

    Raises:
        ValueError: if the environment has no web address; the message does not show the address.
    """

    name = "webhook"

    def __init__(self, run_directory: Path, first_wait_seconds: float = FIRST_WAIT_SECONDS) -> None:
        super().__init__()
        self._url, self.source = secret(self.name, VARIABLE), run_directory.name
        self._host = _host_of(self._url)
        self.first_wait_seconds = first_wait_seconds

    @classmethod
    def check_usable(cls) -> None:
        """Raise ValueError if the environment has no address to which alerts can be posted."""
        _host_of(secret(cls.name, VARIABLE))

    def deliver(self, alert: Alert) -> str:
        """Post an alert, with retries. Return "" or, if it could not be delivered, the reason."""
        wait_seconds = self.first_wait_seconds
        for left in reversed(range(NUM_TRIES)):
            try:
                self._post(alert)
                return ""
            except urllib.error.HTTPError as error:
                why, may_retry = f"it answered {error.code}", error.code == 429 or error.code >= 500
                if 300 <= error.code < 400:
                    why += phrase("notifications.webhook_redirects_elsewhere", variable=VARIABLE)
                wait_seconds = _seconds_until(error.headers.get("Retry-After"), wait_seconds)
                error.close()
            except (OSError, http.client.HTTPException) as error:
                why, may_retry = (
                    phrase("notifications.webhook_unreachable", error=type(error).__name__),
                    True,
                )
            if not may_retry or not left:
                return why
            self.pause(min(wait_seconds, LONGEST_WAIT_SECONDS))
            wait_seconds *= 2
        return ""

    def _post(self, alert: Alert) -> None:
        request = urllib.request.Request(
            self._url,
            data=json.dumps(payload(alert, self._host, self.source)).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "temper"},
            method="POST",
        )
        with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read()


def _seconds_until(retry_after: str | None, otherwise: float) -> float:
    """Return the seconds to wait that a server requests in its Retry-After header.

    The header has a number of seconds or a date. For any other content, return `otherwise`.
    """
    if retry_after is None:
        return otherwise
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return otherwise
    return max(0.0, moment.timestamp() - time.time())


def payload(alert: Alert, host: str, source: str) -> dict[str, object]:
    """Return the JSON to post: `text` for Slack, `content` for Discord, all values for
    other hosts.
    """
    text = f"{source}: {alert.severity} at step {alert.step}: {alert.message}"
    if host.endswith("slack.com"):
        return {"text": text}
    if host.endswith(("discord.com", "discordapp.com")):
        return {"content": text}
    values = {**alert.record(), "value": _json_number(alert.value)}
    return {"text": text, "source": source, **values}


def _json_number(value: float) -> float | str:
    return value if value - value == 0 else str(value)
