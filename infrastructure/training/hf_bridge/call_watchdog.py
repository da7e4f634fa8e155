"""Whether the call of `Trainer.train` still runs, and signals while it does.

A callback is not told when an exception ends the training, so somebody looks: the frame that the
callback was called from is on the stack of its thread as long as the training goes on.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from infrastructure.core.stop_signals import Stopper, stop_signals

LOOK_SECONDS = 0.5
# What stands on the stack between a training and its callbacks.
BETWEEN = ("infrastructure.training.hf_bridge", "transformers.trainer_callback")


Handler = Callable[[int, FrameType | None], object] | int | None


class TrainCall:
    """The call of `Trainer.train` that this is made in."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").startswith(BETWEEN):
            frame = frame.f_back
        self._frame = frame
        self._around = None if frame is None else frame.f_back

    def is_tried_again(self) -> bool:
        """Whether this is asked in the same call of `Trainer.train`, in a later try of it: with
        `auto_find_batch_size` a Trainer begins again in smaller batches."""
        return self._is_under(sys._getframe(), self._around)

    def is_running(self) -> bool:
        """Whether it has not come to its end, one way or another."""
        return self.is_around(sys._current_frames().get(self.thread))

    def is_around(self, frame: FrameType | None) -> bool:
        """Whether `frame` is of a call inside it."""
        return self._is_under(frame, self._frame)

    @staticmethod
    def _is_under(frame: FrameType | None, outer: FrameType | None) -> bool:
        while frame is not None and frame is not outer:
            frame = frame.f_back
        return frame is not None

    @property
    def trainer(self) -> object:
        """The Trainer; None where the call is not one of its methods."""
        return None if self._frame is None else self._frame.f_locals.get("self")


class CallWatchdog(threading.Thread):
    """Calls `on_gone`, in a thread of its own, when a call has ended and nobody has said so."""

    def __init__(self, call: TrainCall, on_gone: Callable[[], None]) -> None:
        super().__init__(name="call-watchdog", daemon=True)
        self.call, self.on_gone = call, on_gone
        self._is_over = threading.Event()

    def run(self) -> None:
        """Look until `end`."""
        while not self._is_over.wait(LOOK_SECONDS):
            if not self.call.is_running():
                self.on_gone()
                return

    def end(self) -> None:
        """From here on the end is known."""
        self._is_over.set()


class StopSignals:
    """Ctrl-C, a notebook's Stop, SIGTERM and SIGHUP come to a `Stopper` while the call runs, and to
    who had them before otherwise. In the main thread only, where signals are handled.
    """

    def __init__(self, call: TrainCall, stopper: Stopper) -> None:
        self.call, self.stopper = call, stopper
        self._before: dict[int, Handler] = {}

    def install(self) -> None:
        """Take the signals."""
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                owner = getattr(signal.getsignal(number), "__self__", None)
                if isinstance(owner, StopSignals) and not owner.call.is_running():
                    owner.remove()  # of a training that an exception has ended
            self._before = {n: signal.signal(n, self._handle) for n in stop_signals()}

    def remove(self) -> None:
        """Give the signals back to who had them, where this is the main thread; elsewhere the
        first signal after the training does."""
        self.stopper.close()
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.call.is_around(frame):
            self.stopper.handle(number, frame)
            return
        self.remove()  # an exception has ended the training
        if not self.stopper.take_wake():
            signal.raise_signal(number)
