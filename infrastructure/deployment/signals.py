"""Ctrl-C and SIGTERM ask a training to stop at the next step; a second Ctrl-C stops at once.

The handlers are there only while a command runs, and the old ones come back afterwards.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from infrastructure.training.state import TrainingState

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM is what Ctrl-C is: it ends the work in order, not the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"{signal.Signals(number).name} received")

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_on_signals(state: TrainingState) -> Iterator[None]:
    """Inside, the first signal calls `state.stop`; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if state.stop_reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        state.stop(f"{signal.Signals(number).name} received")

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
