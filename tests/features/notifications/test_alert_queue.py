"""Each alert is sent in order or counted as lost, with the reason, and nothing waits for it."""

import threading
import time
from collections.abc import Callable

import pytest

from infrastructure.core.errors import InputError
from infrastructure.features.notifications import alert_queue
from infrastructure.features.notifications.alert_queue import MAX_WAITING, QueuedSink, secret
from infrastructure.monitoring.watching.alerts import Alert
from tests.features.notifications.test_webhook import alert


class Sink(QueuedSink):
    """A sink that sends by a function of the alert's step."""

    name = "here"

    def __init__(self, end: Callable[[int], str]) -> None:
        super().__init__()
        self.end, self.steps = end, list[int]()

    def deliver(self, alert: Alert) -> str:
        self.steps.append(alert.step)
        return self.end(alert.step)


def test_what_is_lost_is_counted_with_the_last_reason_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def end(step: int) -> str:
        if step == 3:
            raise RuntimeError("with a secret")
        return {1: "full"}.get(step, "")

    sink = Sink(end)
    sink.close()
    for number in range(5):
        sink.send(alert(number))
    sink.close()
    assert sink.steps == [0, 1, 2, 3, 4]
    assert sink.lost == (2, "it failed (RuntimeError)")
    assert caplog.messages == ["notifications.alert_not_delivered(sink=here, reason=full)"]
    sink.send(alert(5))
    sink.close()
    assert (sink.steps[5:], sink.lost[0]) == ([5], 2)


def test_what_has_no_room_or_no_time_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_queue, "CLOSE_SECONDS", 0.05)
    began, may_end = threading.Event(), threading.Event()

    def end(step: int) -> str:
        began.set()
        may_end.wait(60)
        return "late"

    sink = Sink(end)
    sink.send(alert(0))
    assert began.wait(60)
    thread = sink._thread
    assert thread is not None
    for number in range(MAX_WAITING + 3):
        sink.send(alert(number))
    assert sink.lost == (3, "notifications.too_many_alerts_queued()")
    sink.close()
    lost = (3 + MAX_WAITING + 1, "notifications.run_ended_before_delivery()")
    assert sink.lost == lost
    may_end.set()
    while len(sink.steps) < MAX_WAITING + 1:
        time.sleep(0.001)
    assert sink.lost == lost


def test_a_close_waits_as_long_as_the_server_demands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink, slept = Sink(lambda _: ""), list[float]()
    assert sink._gives_up_at(100.0) == 105.0
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    sink.pause(20.0)
    assert slept == [20.0]
    assert [sink._gives_up_at(began) for began in (90.0, 100.0, 200.0)] == [125.0, 125.0, 205.0]
    sink.pause(90.0)
    assert sink._gives_up_at(100.0) == 160.0


def test_the_address_of_a_sink_is_in_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "there")
    assert secret("here", "WHERE") == "there"
    monkeypatch.setenv("WHERE", "")
    with pytest.raises(InputError, match=r"sink_without_address\(sink=here, variable=WHERE\)"):
        secret("here", "WHERE")
