"""Signals that ask a process to stop, and how training responds to them.

SIGHUP is sent when a terminal is closed or its connection breaks. If the process was started with
SIGHUP ignored (`nohup`), it stays ignored, so that work continues without a terminal.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal(KeyboardInterrupt):
    """An interrupt that a stop signal raises, so that work ends cleanly.

    The signal is called `name`.
    """

    def __init__(self, number: int) -> None:
        super().__init__(reason_of(number))
        self.name = signal.Signals(number).name


# A preempted machine gives about half a minute. A step, an evaluation or the compilation of a model
# may take longer than that, and is then repeated when the run resumes.
PATIENCE_SECONDS = 8.0
RETRY_SECONDS = 0.05
UNWINDING_SECONDS = 1.0  # time for an interrupt to arrive before the next one


_REASONS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "ended from outside (SIGTERM)",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}


def reason_of(number: int) -> str:
    """Return the recorded reason for a stop by a signal, such as `ended from outside (SIGTERM)`."""
    known = signal.Signals(number)
    return _REASONS.get(known, f"ended from outside ({known.name})")


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to stop."""
    always = (signal.SIGINT, signal.SIGTERM)
    is_heard = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (*always, signal.SIGHUP) if is_heard else always


class Stopper:
    """The handler of stop signals during a run.

    The first signal asks the run to stop after its step. If the step takes long, a second Ctrl-C or
    the end of a waiting time interrupts it, as soon as no finished step would be lost. Further
    signals cannot interrupt saving. Only SIGQUIT and SIGKILL can.

    Args:
        request: a function that asks the run to stop. It gets the number of the first signal.
        may_break_off: a function that returns whether the run may be interrupted now without losing
            a finished step.
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
        """Return whether this object's timer sent the current signal, and forget that it did."""
        is_wake, self._is_wake = self._is_wake, False
        return is_wake

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal as the class describes.

        Raises:
            StopSignal: with the first signal's number, to interrupt the current operation.
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
        """Send SIGINT to the main thread when the waiting time is over.

        The timer's thread calls this.
        """
        main = threading.main_thread().ident
        with self._lock:
            if self._is_over or main is None:
                return
            self._is_patient, self._is_wake = False, True
            signal.pthread_kill(main, signal.SIGINT)

    def close(self) -> None:
        """Stop the timer, so that it sends no more signals."""
        with self._lock:
            self._is_over = True
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def signals_handled(
    numbers: Iterable[int], handle: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle these signals with `handle` inside the block, then restore the earlier handlers.

    Outside the main thread this does nothing, because only the main thread receives signals.
    """
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
    """Treat SIGTERM and SIGHUP like Ctrl-C inside the block, so that work ends cleanly.

    Both raise StopSignal instead of ending the process.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        raise StopSignal(number)

    with signals_handled((n for n in stop_signals() if n != signal.SIGINT), handle):
        yield


def take_usr1_as_sigterm() -> None:
    """Treat SIGUSR1, which Slurm's `--signal=USR1@300` sends before a job's limit, like SIGTERM.

    By default SIGUSR1 would kill the process. Only a command may call this, because it owns its
    process.
    """

    def terminate(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, terminate)


def ignore_stop_signals() -> None:
    """Ignore stop signals in a helper, whose parent handles them and stops the helper."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
