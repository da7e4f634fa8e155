"""Alerts on their way to another machine: sent by a thread, so a slow address holds nobody up."""

import logging
import queue
import threading
from collections.abc import Callable

from infrastructure.monitoring.watching.alerts import Alert

logger = logging.getLogger(__name__)

MAX_WAITING = 100  # alerts; more are dropped, and said so
CLOSE_SECONDS = 5.0


class AlertQueue:
    """Hands alerts to `post`, one after the other, in a thread of its own.

    Args:
        name: what the alerts go to, for the log.
        post: sends one alert; returns why it could not, or "". Its text holds no address.
    """

    def __init__(self, name: str, post: Callable[[Alert], str]) -> None:
        self._name, self._post = name, post
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MAX_WAITING)
        self._has_warned = False
        self._thread: threading.Thread | None = None

    def put(self, alert: Alert) -> None:
        """Hand `alert` over; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._post_all, name=self._name, daemon=True)
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
            if why := self._post(alert):
                self._warn_once(why)

    def _warn_once(self, why: str) -> None:
        if not self._has_warned:
            logger.warning("an alert did not get to the %s: %s", self._name, why)
        self._has_warned = True
