"""The handling of Ctrl-C, SIGTERM and SIGHUP in Temper's training loop, based on `Stopper`.

The handlers are installed only while a command runs. The previous ones are restored afterwards.
`Stopper` is in `core.stop_signals`.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import (
    Stopper,
    reason_of,
    signals_handled,
    stop_signals,
)
from infrastructure.monitoring.records.run_owner import take_announced_stop
from infrastructure.training.core.state import StopReason, TrainingState


def _always() -> bool:
    return True


@contextmanager
def stop_on_signals(
    state: TrainingState,
    may_break_off: Callable[[], bool] = _always,
    run_path: Path | None = None,
) -> Iterator[None]:
    """Call `state.interrupt` at the first signal while the body runs.

    If the run does not stop in time, or at a second Ctrl-C, StopSignal is raised as soon as
    `may_break_off` returns True. This does nothing outside the main thread.
    """

    def request(number: int) -> None:
        is_command = number == signal.SIGTERM and run_path is not None
        if is_command and take_announced_stop(run_path or Path()):
            state.interrupt(phrase("core.stopped_by_command"), StopReason.COMMAND, number)
        else:
            state.interrupt(reason_of(number), StopReason.SIGNAL, number)

    stopper = Stopper(request, may_break_off)
    with signals_handled(stop_signals(), stopper.handle):
        try:
            yield
        finally:
            stopper.close()
