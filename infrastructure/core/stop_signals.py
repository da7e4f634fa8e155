"""Signals that ask a process to stop.

SIGHUP comes when a terminal is closed or its connection breaks. Whoever has had it ignored (nohup)
wants the work to go on without one.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal(KeyboardInterrupt):
    """A signal, as an interrupt that ends the work in order; `name` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(reason_of(number))
        self.name = signal.Signals(number).name


STOP_COMMAND = "stopped by temper stop"


_REASONS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "ended from outside (SIGTERM)",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}


def reason_of(number: int) -> str:
    """What a run says of its stop: `ended from outside (SIGTERM)`."""
    known = signal.Signals(number)
    return _REASONS.get(known, f"ended from outside ({known.name})")


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that ask this process to stop."""
    always = (signal.SIGINT, signal.SIGTERM)
    is_heard = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (*always, signal.SIGHUP) if is_heard else always


@contextmanager
def signals_handled(
    numbers: Iterable[int], handle: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Inside, these signals come to `handle`, and afterwards to who had them. Does nothing outside
    the main thread, which alone gets any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP are what Ctrl-C is: they end the work in order, not the process;
    what is raised is a StopSignal."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise StopSignal(number)

    with signals_handled((n for n in stop_signals() if n != signal.SIGINT), handle):
        yield


def take_usr1_as_sigterm() -> None:
    """SIGUSR1, which Slurm's `--signal=USR1@300` sends before a job's limit, asks this process for
    what SIGTERM does: by itself it would end it. For a command, which owns its process."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, terminate)


def ignore_stop_signals() -> None:
    """For a helper: its parent is who stops, and tells it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
