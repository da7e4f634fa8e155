"""Ctrl-C, SIGTERM and SIGHUP ask a training to stop at the next step, and break off one that takes
long.

The handlers are there only while a command runs, and the old ones come back afterwards.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from infrastructure.core.stop_signals import (
    STOP_COMMAND,
    reason_of,
    signals_handled,
    stop_signals,
)
from infrastructure.monitoring.records.run_owner import take_announced_stop
from infrastructure.training.core.state import StopReason, TrainingState

# A machine that is taken away gives half a minute or so; a step, an evaluation, or the compiling of
# a model may take longer than that, and is then done again by whoever goes on.
PATIENCE_SECONDS = 8.0
RETRY_SECONDS = 0.05


class _Stopper:
    """Turns signals into `state.interrupt`, then into KeyboardInterrupt where that is harmless."""

    def __init__(
        self, state: TrainingState, may_break_off: Callable[[], bool], run_path: Path | None
    ) -> None:
        self.state = state
        self.may_break_off = may_break_off
        self.run_path = run_path
        self.num_ctrl_c = 0
        self.is_patient = True
        self._lock = threading.Lock()
        self._is_wake = False
        self._is_over = False
        self._timer: threading.Timer | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks; the second Ctrl-C, or the end of patience, insists."""
        is_wake, self._is_wake = self._is_wake, False
        self.num_ctrl_c += number == signal.SIGINT and not is_wake
        if not self.state.is_interrupted:
            if self._is_command(number):
                self.state.interrupt(STOP_COMMAND, StopReason.COMMAND, number)
            else:
                self.state.interrupt(reason_of(number), StopReason.SIGNAL, number)
            self._wait(PATIENCE_SECONDS)
            return
        if self.num_ctrl_c > 2:
            raise KeyboardInterrupt(self.state.stop_message)
        if self.num_ctrl_c == 2 or not self.is_patient:
            self._insist()

    def _is_command(self, number: int) -> bool:
        is_possible = number == signal.SIGTERM and self.run_path is not None
        return is_possible and take_announced_stop(self.run_path or Path())

    def _insist(self) -> None:
        """Not while the weights change or are being saved: that would lose what can be kept."""
        if self.may_break_off():
            raise KeyboardInterrupt(self.state.stop_message)
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
            self.is_patient, self._is_wake = False, True
            signal.pthread_kill(main, signal.SIGINT)

    def close(self) -> None:
        """From here on, no timer sends a signal."""
        with self._lock:
            self._is_over = True
        if self._timer is not None:
            self._timer.cancel()


def _always() -> bool:
    return True


@contextmanager
def stop_on_signals(
    state: TrainingState,
    may_break_off: Callable[[], bool] = _always,
    run_path: Path | None = None,
) -> Iterator[None]:
    """Inside, the first signal calls `state.interrupt`; if nothing has come of it when patience
    ends, or at a second Ctrl-C, KeyboardInterrupt is raised as soon as `may_break_off` allows; a
    third Ctrl-C raises it at once. Does nothing outside the main thread.
    """
    stopper = _Stopper(state, may_break_off, run_path)
    with signals_handled(stop_signals(), stopper.handle):
        try:
            yield
        finally:
            stopper.close()
