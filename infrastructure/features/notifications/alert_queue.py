"""A queue of alerts, which a thread sends to another machine, so that a slow server delays nothing.

Alerts that are not delivered are counted, with the reason. The owner of the queue reports them.
"""

import logging
import os
import queue
import threading
import time
from abc import ABC, abstractmethod

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.monitoring.watching.alerts import Alert

logger = logging.getLogger(__name__)

MAX_WAITING = 100  # alerts; more are dropped and counted
CLOSE_SECONDS = 5.0
LONGEST_CLOSE_SECONDS = 60.0  # if the other side has said when to retry


def secret(sink: str, variable: str) -> str:
    """Return the address of a sink, which is in an environment variable.

    Raises:
        ValueError: if the variable is not set.
    """
    address = os.environ.get(variable, "")
    if not address:
        raise InputError("notifications.sink_without_address", sink=sink, variable=variable)
    return address


class QueuedSink(ABC):
    """A sink that sends its alerts in its own thread, one after the other.

    Attributes:
        name: the destination of the alerts, for the log.
    """

    name: str

    def __init__(self) -> None:
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._num_left = 0  # alerts that were accepted, and neither sent nor lost
        self._pauses_until = float("-inf")
        self._num_lost, self._why_lost = 0, ""

    @abstractmethod
    def deliver(self, alert: Alert) -> str:
        """Send one alert. Return "" or, if sending failed, the reason, without the address."""

    @property
    def lost(self) -> tuple[int, str]:
        """The number of alerts that were not delivered, and the reason why the last one was not."""
        return self._num_lost, self._why_lost

    def send(self, alert: Alert) -> None:
        """Add `alert` to the queue and return at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver_all, name=self.name, daemon=True)
            self._thread.start()
        with self._lock:
            self._num_left += 1
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._settle(phrase("notifications.too_many_alerts_queued"))

    def pause(self, seconds: float) -> None:
        """Wait before sending the next alert. `post` calls this if the server requests a pause."""
        self._pauses_until = time.monotonic() + seconds
        time.sleep(seconds)

    def close(self) -> None:
        """Send waiting alerts for at most five seconds, or longer if the server requests it.

        Alerts that are still waiting then count as not delivered.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        began = time.monotonic()
        while self._num_left and time.monotonic() < self._gives_up_at(began):
            thread.join(0.02)
        with self._lock:
            num_left, self._num_left = self._num_left, 0
        for _ in range(num_left):
            self._lose(phrase("notifications.run_ended_before_delivery"))
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        if not num_left:
            thread.join(CLOSE_SECONDS)

    def _gives_up_at(self, began: float) -> float:
        end = max(began, self._pauses_until) + CLOSE_SECONDS
        return min(end, began + LONGEST_CLOSE_SECONDS)

    def _deliver_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            try:
                why = self.deliver(alert)
            except Exception as error:  # the next alert may succeed; the text may contain a secret
                why = f"it failed ({type(error).__name__})"
            self._settle(why)

    def _settle(self, why: str) -> None:
        """Count one alert as delivered, or as lost if `why` is not empty.

        After `close`, do nothing.
        """
        with self._lock:
            if not self._num_left:
                return
            self._num_left -= 1
        if why:
            self._lose(why)

    def _lose(self, why: str) -> None:
        if not self._num_lost:
            logger.warning(phrase("notifications.alert_not_delivered", sink=self.name, reason=why))
        with self._lock:
            self._num_lost, self._why_lost = self._num_lost + 1, why
