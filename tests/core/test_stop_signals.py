"""SIGHUP asks to stop, unless somebody has had it ignored."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.core import stop_signals as module
from infrastructure.core.stop_signals import (
    Stopper,
    StopSignal,
    interrupt_on_signals,
    signals_handled,
    stop_signals,
    take_usr1_as_sigterm,
)

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "from infrastructure.core.stop_signals import stop_signals; print(*stop_signals())"


def test_a_closed_terminal_is_a_stop_signal() -> None:
    assert {*stop_signals()} == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def test_under_nohup_it_does_not() -> None:
    done = subprocess.run(
        ["nohup", sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2", "15"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SIGHUP", "its terminal was closed (SIGHUP)"),
        ("SIGINT", "interrupted"),
        ("SIGTERM", "ended from outside (SIGTERM)"),
        ("SIGUSR1", "ended from outside (SIGUSR1)"),
    ],
)
def test_a_stop_is_an_interrupt_that_knows_its_signal(name: str, message: str) -> None:
    error = StopSignal(signal.Signals[name])
    assert (error.name, str(error)) == (name, message)
    assert isinstance(error, KeyboardInterrupt)


def test_helpers_leave_it_to_their_parent() -> None:
    code = (
        "import os, signal\nfrom infrastructure.core.stop_signals import ignore_stop_signals\n"
        "ignore_stop_signals()\n"
        "for number in (1, 2, 10, 15):\n    os.kill(os.getpid(), number)\nprint('lives')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"lives\n"


def test_what_had_the_signals_has_them_again() -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    seen: list[int] = []
    with signals_handled(numbers, lambda number, _frame: seen.append(number)):
        for number in numbers:
            signal.raise_signal(number)
    assert seen == [*numbers]
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_inside_a_signal_is_an_interrupt_and_ctrl_c_stays_as_it_is(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    own = signal.getsignal(signal.SIGINT)
    inside: list[object] = []

    def work() -> None:
        with interrupt_on_signals():
            inside.append(signal.getsignal(signal.SIGINT))
            signal.raise_signal(number)

    take_usr1_as_sigterm()
    try:
        with pytest.raises(StopSignal) as raised:
            work()
        assert inside == [own]
    finally:
        signal.signal(signal.SIGUSR1, before)
    is_usr1 = number == signal.SIGUSR1
    assert raised.value.name == ("SIGTERM" if is_usr1 else number.name)


def test_a_run_that_does_not_stop_in_time_is_interrupted_with_the_first_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.2)
    requests: list[int] = []
    stopper = Stopper(requests.append, lambda: True)
    with signals_handled([signal.SIGTERM, signal.SIGINT], stopper.handle):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopSignal) as stopped:
            time.sleep(20)
    stopper.close()
    assert (stopped.value.name, requests) == ("SIGTERM", [signal.SIGTERM])


INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Handled:
    """A stopper whose timer is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.may_break_off = 100.0, True
        self.done: list[object] = []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(module, "time", clock)
        self.stopper = Stopper(
            lambda number: self.note("request", number), lambda: self.may_break_off
        )
        monkeypatch.setattr(self.stopper, "_wait", lambda seconds: self.note("wait", seconds))

    def note(self, *what: object) -> None:
        self.done.append(what)

    def after(self, seconds: float, number: int | None, **options: bool) -> list[object]:
        """Handle a signal after that many seconds; None is the timer's signal."""
        self.now += seconds
        self.may_break_off = options.get("may_break_off", True)
        self.done = []
        if number is None:
            self.stopper._is_patient, self.stopper._is_wake = False, True
        try:
            self.stopper.handle(number or INT, None)
        except StopSignal as stop:
            self.note("stopped", stop.name)
        return self.done


def test_the_first_signal_is_a_request_and_a_second_ctrl_c_interrupts_where_no_step_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Handled(monkeypatch)
    stopped, again = ("stopped", "SIGTERM"), ("wait", module.RETRY_SECONDS)
    assert run.after(0, TERM) == [("request", TERM), ("wait", module.PATIENCE_SECONDS)]
    assert run.after(1, HUP) == run.after(1, INT) == []  # one Ctrl-C
    assert run.after(1, INT, may_break_off=False) == [again]
    assert run.after(1, INT) == [stopped]
    assert run.after(0.9, INT) == [again], "the first one is on its way"
    assert run.after(0.1, HUP) == [stopped]


def test_where_the_time_is_over_any_signal_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Handled(monkeypatch)
    run.after(0, INT)
    assert run.after(8, None) == [("stopped", "SIGINT")]
    assert not run.stopper.take_wake()
    assert run.after(2, TERM) == [("stopped", "SIGINT")]


def test_a_timer_that_is_over_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(signal, "pthread_kill", lambda _thread, number: sent.append(number))
    stopper = Stopper(lambda _: None, lambda: True)
    stopper._wake()
    assert (sent, stopper.take_wake(), stopper.take_wake()) == ([INT], True, False)
    stopper._wait(60)
    first = stopper._timer
    stopper._wait(60)
    stopper.close()
    stopper._wake()
    assert sent == [INT]
    for timer in (first, stopper._timer):
        assert timer is not None
        timer.join(10)
        assert not timer.is_alive()


def test_only_the_main_thread_takes_signals() -> None:
    before, found = signal.getsignal(TERM), list[object]()

    def work() -> None:
        with signals_handled([TERM], lambda *_: None):
            found.append(signal.getsignal(TERM))
        take_usr1_as_sigterm()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
