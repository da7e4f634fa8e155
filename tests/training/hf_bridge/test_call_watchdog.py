"""Whether a call still runs, and signals while it does."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

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


def test_the_end_of_a_call_without_a_notice_is_noticed() -> None:
    gone = threading.Event()

    def broken(call: TrainCall) -> None:
        CallWatchdog(call, gone.set).start()
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        call_and_stay(broken)
    assert gone.wait(10)


def test_an_end_that_was_reported_is_not_reported_again() -> None:
    gone = threading.Event()

    def end(call: TrainCall) -> None:
        watchdog = CallWatchdog(call, gone.set)
        watchdog.start()
        watchdog.end()
        watchdog.join(10)
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


def stop_signals_of(call: TrainCall, requests: list[str]) -> StopSignals:
    return StopSignals(call, lambda reason, number: requests.append(reason))


def test_the_first_signal_requests_and_the_second_ctrl_c_insists(received: list[int]) -> None:
    requests: list[str] = []

    def inside(call: TrainCall) -> None:
        signals = stop_signals_of(call, requests)
        signals.install()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert requests == ["ended from outside (SIGTERM)"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        signals.remove()
        os.kill(os.getpid(), signal.SIGINT)

    call_and_stay(inside)
    assert received == [signal.SIGINT]


def test_after_the_call_signals_are_those_of_before_again(received: list[int]) -> None:
    requests: list[str] = []
    for _ in range(2):  # the second finds what the first has left
        call_and_stay(
            lambda call: StopSignals(call, lambda reason, _: requests.append(reason)).install()
        )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert received == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    assert requests == []
