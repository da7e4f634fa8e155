"""Alerts on their way to another machine: sent by a thread, so a slow address holds nobody up.

What does not get there is counted, with the reason; whoever made the queue reports that.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

from infrastructure.core.messages import phrase
from infrastructure.monitoring.watching.alerts import Alert

logger = logging.getLogger(__name__)

MAX_WAITING = 100  # alerts; more are dropped, and counted
CLOSE_SECONDS = 5.0
LONGEST_CLOSE_SECONDS = 60.0  # where the other side has said when to come back


class AlertQueue:
    """Hands alerts to `post`, one after the other, in a thread of its own.

    Args:
        name: what the alerts go to, for the log.
        post: sends one alert; returns why it could not, or "". Its text holds no address.

    Attributes:
        num_lost: alerts that did not get there.
        why_lost: the reason of the last of them.
    """

    def __init__(self, name: str, post: Callable[[Alert], str]) -> None:
        self._name, self._post = name, post
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._num_left = 0  # that were put, and neither sent nor lost
        self._pauses_until = float("-inf")
        self.num_lost, self.why_lost = 0, ""

    def put(self, alert: Alert) -> None:
        """Hand `alert` over; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._post_all, name=self._name, daemon=True)
            self._thread.start()
        with self._lock:
            self._num_left += 1
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._settle(phrase("monitoring.too_many_alerts_queued"))

    def pause(self, seconds: float) -> None:
        """Called by `post`: wait as long as the other side has asked for."""
        self._pauses_until = time.monotonic() + seconds
        time.sleep(seconds)

    def close(self) -> None:
        """Send what is waiting, for five seconds, and as long as the other side asks for; what is
        left then counts as lost."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        began = time.monotonic()
        while self._num_left and time.monotonic() < self._gives_up_at(began):
            thread.join(0.02)
        with self._lock:
            num_left, self._num_left = self._num_left, 0
        for _ in range(num_left):
            self._lose(phrase("monitoring.run_ended_before_delivery"))
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        if not num_left:
            thread.join(CLOSE_SECONDS)

    def _gives_up_at(self, began: float) -> float:
        end = max(began, self._pauses_until) + CLOSE_SECONDS
        return min(end, began + LONGEST_CLOSE_SECONDS)

    def _post_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            try:
                why = self._post(alert)
            except Exception as error:  # the next alert may get there; the text may hold a secret
                why = f"it failed ({type(error).__name__})"
            self._settle(why)

    def _settle(self, why: str) -> None:
        """Take one alert off, which was sent or (with a reason) lost; a late one is counted."""
        with self._lock:
            if not self._num_left:
                return
            self._num_left -= 1
        if why:
            self._lose(why)

    def _lose(self, why: str) -> None:
        if not self.num_lost:
            logger.warning(phrase("monitoring.alert_not_delivered", sink=self._name, reason=why))
        with self._lock:
            self.num_lost, self.why_lost = self.num_lost + 1, why
