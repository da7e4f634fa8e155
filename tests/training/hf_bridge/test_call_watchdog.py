"""Whether a call still runs, and signals while it does."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from infrastructure.core import stop_signals
from infrastructure.core.stop_signals import Stopper, StopSignal
from infrastructure.training.hf_bridge.call_watchdog import CallWatchdog, StopSignals, TrainCall


def call_and_stay(inside: Callable[[TrainCall], None]) -> TrainCall:
    call = TrainCall()
    inside(call)
    return call


def test_a_call_runs_until_it_returns_or_raises() -> None:
    seen: list[bool] = []
    call = call_and_stay(lambda call: seen.append(call.is_running()))
    assert seen == [True]
    assert not call.is_running()


class Trains:
    """Calls that make a `TrainCall` deep inside, as a Trainer does."""

    def train(self, num_tries: int = 1) -> list[TrainCall]:
        return [self.inner() for _ in range(num_tries)]

    def inner(self) -> TrainCall:
        call = TrainCall()
        if not self.calls:
            self.calls.append(call)
        self.seen.append(self.calls[0].is_tried_again())
        return call

    def __init__(self) -> None:
        self.calls: list[TrainCall] = []
        self.seen: list[bool] = []


def test_a_call_knows_its_trainer_and_whether_it_is_tried_again() -> None:
    trainer = Trains()
    calls = trainer.train(2)
    assert [call.trainer for call in calls] == [trainer, trainer]
    trainer.train()
    assert trainer.seen == [True, True, False]
    assert call_and_stay(lambda call: None).trainer is None
    watchdog = CallWatchdog(calls[0], lambda: None)
    assert (watchdog.daemon, watchdog.name) == (True, "call-watchdog"), "it keeps no process alive"


def test_the_end_of_a_call_without_a_notice_is_noticed() -> None:
    gone = threading.Event()

    def broken(call: TrainCall) -> None:
        CallWatchdog(call, gone.set).start()
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        call_and_stay(broken)
    assert gone.wait(60)


def test_an_end_that_was_reported_is_not_reported_again() -> None:
    gone = threading.Event()

    def end(call: TrainCall) -> None:
        watchdog = CallWatchdog(call, gone.set)
        watchdog.start()
        watchdog.end()
        watchdog.join(60)
        assert not watchdog.is_alive()

    call_and_stay(end)
    assert not gone.is_set()


@pytest.fixture
def received() -> Iterator[list[int]]:
    """What reaches the handlers that were there before."""
    numbers: list[int] = []
    before = {
        n: signal.signal(n, lambda number, frame: numbers.append(number))
        for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def stop_signals_of(
    call: TrainCall, requests: list[int], may_break_off: Callable[[], bool] = lambda: True
) -> StopSignals:
    return StopSignals(call, Stopper(requests.append, may_break_off))


def test_the_first_signal_requests_and_the_second_ctrl_c_insists(received: list[int]) -> None:
    requests: list[int] = []

    def inside(call: TrainCall) -> None:
        signals = stop_signals_of(call, requests)
        signals.install()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert requests == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopSignal):
            os.kill(os.getpid(), signal.SIGINT)
        signals.remove()
        os.kill(os.getpid(), signal.SIGINT)

    call_and_stay(inside)
    assert received == [signal.SIGINT]


def test_a_step_is_broken_off_by_the_exception_that_the_caller_chose(received: list[int]) -> None:
    seen: list[str] = []

    def chosen(stop: StopSignal) -> BaseException:
        seen.append(stop.name)
        return SystemExit(143)

    def inside(call: TrainCall) -> None:
        signals = StopSignals(call, Stopper(lambda number: None, lambda: True), chosen)
        signals.install()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGINT)
        signals.remove()

    call_and_stay(inside)
    assert (seen, received) == (["SIGTERM"], [])


def test_the_timer_of_a_call_that_has_ended_interrupts_nobody(
    received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception has ended it, and the handlers are still there."""
    monkeypatch.setattr(stop_signals, "PATIENCE_SECONDS", 0.0)
    stoppers: list[Stopper] = []

    def inside(call: TrainCall) -> None:
        signals = stop_signals_of(call, [], lambda: False)
        signals.install()
        stoppers.append(signals.stopper)

    call_and_stay(inside)
    stoppers[0]._wake()
    assert received == []
    os.kill(os.getpid(), signal.SIGINT)
    assert received == [signal.SIGINT]


def test_handlers_are_left_that_came_later_and_those_of_a_running_call(
    received: list[int],
) -> None:
    outer, inner, later = list[int](), list[int](), list[int]()

    def inside(call: TrainCall) -> None:
        first = stop_signals_of(call, outer)
        first.install()

        def deeper(call: TrainCall) -> None:
            second = stop_signals_of(call, inner)
            second.install()
            os.kill(os.getpid(), signal.SIGTERM)
            second.remove()
            os.kill(os.getpid(), signal.SIGHUP)

        call_and_stay(deeper)
        own = signal.signal(signal.SIGINT, lambda number, frame: later.append(number))
        first.remove()
        os.kill(os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGINT, own)
        os.kill(os.getpid(), signal.SIGTERM)

    call_and_stay(inside)
    assert (inner, outer, later) == ([signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT])
    assert received == [signal.SIGTERM]


def test_elsewhere_than_in_the_main_thread_no_handler_is_changed(received: list[int]) -> None:
    def inside(call: TrainCall) -> None:
        signals = stop_signals_of(call, [])
        thread = threading.Thread(target=signals.install)
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGHUP)
        assert received == [signal.SIGHUP]
        signals.install()
        thread = threading.Thread(target=signals.remove)
        thread.start()
        thread.join()

    call_and_stay(inside)
    os.kill(os.getpid(), signal.SIGINT)  # restores what was there, and passes it on
    assert received == [signal.SIGHUP, signal.SIGINT]


def test_after_the_call_signals_are_those_of_before_again(received: list[int]) -> None:
    requests: list[int] = []
    for _ in range(2):  # the second finds what the first has left
        call_and_stay(lambda call: stop_signals_of(call, requests).install())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert received == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    assert requests == []
