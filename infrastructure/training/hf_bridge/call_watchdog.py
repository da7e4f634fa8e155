"""Detection of the end of a call of `Trainer.train`, and handling of signals during the call.

A Trainer does not notify its callbacks when an exception ends the training. So a thread checks
whether the frame of the call is still on the stack.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from infrastructure.core.stop_signals import Stopper, StopSignal, stop_signals

LOOK_SECONDS = 0.5
# The modules on the stack between a training run and its callbacks.
BETWEEN = ("infrastructure.training.hf_bridge", "transformers.trainer_callback")


Handler = Callable[[int, FrameType | None], object] | int | None


class TrainCall:
    """The call of `Trainer.train` within which this object is created."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").startswith(BETWEEN):
            frame = frame.f_back
        self._frame = frame
        self._around = None if frame is None else frame.f_back

    def is_tried_again(self) -> bool:
        """Return whether the same call of `Trainer.train` is trying again.

        With `auto_find_batch_size`, a Trainer that runs out of memory starts again with smaller
        batches.
        """
        return self._is_under(sys._getframe(), self._around)

    def is_running(self) -> bool:
        """Return whether the call has neither returned nor raised."""
        return self.is_around(sys._current_frames().get(self.thread))

    def is_around(self, frame: FrameType | None) -> bool:
        """Return whether `frame` runs inside this call."""
        return self._is_under(frame, self._frame)

    @staticmethod
    def _is_under(frame: FrameType | None, outer: FrameType | None) -> bool:
        while frame is not None and frame is not outer:
            frame = frame.f_back
        return frame is not None

    @property
    def trainer(self) -> object:
        """The Trainer whose method is called; None if the call is not a method."""
        return None if self._frame is None else self._frame.f_locals.get("self")


class CallWatchdog(threading.Thread):
    """A thread that calls `on_gone` if the watched call ends before `end` was called."""

    def __init__(self, call: TrainCall, on_gone: Callable[[], None]) -> None:
        super().__init__(name="call-watchdog", daemon=True)
        self.call, self.on_gone = call, on_gone
        self._is_over = threading.Event()

    def run(self) -> None:
        """Watch the call until it ends or `end` is called."""
        while not self._is_over.wait(LOOK_SECONDS):
            if not self.call.is_running():
                self.on_gone()
                return

    def end(self) -> None:
        """Stop watching."""
        self._is_over.set()


class StopSignals:
    """Signal handlers that pass Ctrl-C, a notebook's Stop, SIGTERM and SIGHUP to a `Stopper`.

    While the call runs, signals go to the `Stopper`; otherwise they go to the earlier handlers.
    Handlers can be installed only in the main thread.

    Args:
        raised: converts a `StopSignal` to the exception to raise.
    """

    def __init__(
        self,
        call: TrainCall,
        stopper: Stopper,
        raised: Callable[[StopSignal], BaseException] = lambda stop: stop,
    ) -> None:
        self.call, self.stopper, self.raised = call, stopper, raised
        self._before: dict[int, Handler] = {}

    def install(self) -> None:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                owner = getattr(signal.getsignal(number), "__self__", None)
                if isinstance(owner, StopSignals) and not owner.call.is_running():
                    owner.remove()  # of a training run that an exception has ended
            self._before = {n: signal.signal(n, self._handle) for n in stop_signals()}

    def remove(self) -> None:
        """Restore the earlier handlers, if this is the main thread.

        From another thread, the earlier handlers are restored when the next signal arrives.
        """
        self.stopper.close()
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.call.is_around(frame):
            try:
                self.stopper.handle(number, frame)
            except StopSignal as stop:
                raise self.raised(stop) from None
            return
        self.remove()  # an exception has ended the training
        if not self.stopper.take_wake():
            signal.raise_signal(number)
