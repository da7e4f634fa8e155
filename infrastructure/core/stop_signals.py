"""Signals that ask a process to stop, and what a training does at each of them.

SIGHUP comes when a terminal is closed or its connection breaks. Whoever has had it ignored (nohup)
wants the work to go on without one.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal(KeyboardInterrupt):
    """A signal, as an interrupt that ends the work in order; `name` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(reason_of(number))
        self.name = signal.Signals(number).name


# A machine that is taken away gives half a minute or so; a step, an evaluation, or the compiling of
# a model may take longer than that, and is then done again by whoever goes on.
PATIENCE_SECONDS = 8.0
RETRY_SECONDS = 0.05
UNWINDING_SECONDS = 1.0  # for which an interrupt is given time to arrive before there is another


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


class Stopper:
    """What every training does at a signal, whoever trains it.

    The first one asks it to stop after its step. A second Ctrl-C, or the end of patience, breaks
    off what takes long, as soon as that loses nothing that waiting would keep. However many signals
    come, and whichever, no finished step is lost that can be saved: only SIGQUIT and SIGKILL
    end a training that is saving.

    Args:
        request: asks the training to stop; gets the number of the first signal.
        may_break_off: whether an exception now loses no finished step.
    """

    def __init__(self, request: Callable[[int], None], may_break_off: Callable[[], bool]) -> None:
        self.request, self.may_break_off = request, may_break_off
        self._first: int | None = None
        self._num_ctrl_c = 0
        self._is_patient = True
        self._raised_at = -math.inf
        self._lock = threading.RLock()
        self._is_wake = False
        self._is_over = False
        self._timer: threading.Timer | None = None

    def take_wake(self) -> bool:
        """Whether the signal that is being handled comes from this object's own timer."""
        is_wake, self._is_wake = self._is_wake, False
        return is_wake

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            StopSignal: of the first one: what is being done is broken off.
        """
        is_wake = self.take_wake()
        self._num_ctrl_c += number == signal.SIGINT and not is_wake
        if self._first is None:
            self._first = number
            self.request(number)
            self._wait(PATIENCE_SECONDS)
        elif self._num_ctrl_c > 1 or not self._is_patient:
            is_unwinding = time.monotonic() - self._raised_at < UNWINDING_SECONDS
            if not is_unwinding and self.may_break_off():
                self._raised_at = time.monotonic()
                raise StopSignal(self._first)
            self._wait(RETRY_SECONDS)

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, self._wake)
        self._timer.daemon = True
        self._timer.start()

    def _wake(self) -> None:
        """In the timer's thread: handlers run in the main one."""
        main = threading.main_thread().ident
        with self._lock:
            if self._is_over or main is None:
                return
            self._is_patient, self._is_wake = False, True
            signal.pthread_kill(main, signal.SIGINT)

    def close(self) -> None:
        """From here on, no timer sends a signal."""
        with self._lock:
            self._is_over = True
        if self._timer is not None:
            self._timer.cancel()


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
