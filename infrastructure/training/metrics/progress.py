"""Display of a run's progress: a bar in a terminal, lines in a log, a widget in a notebook.

The bar is drawn by tqdm. If the output cannot be redrawn (a pipe, a file, a dumb terminal, a
notebook without ipywidgets), a line is printed every five percent and at least every minute.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TextIO

from tqdm import tqdm

from infrastructure.core.callbacks import do_nothing
from infrastructure.core.console import shows_bars
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.core.optional import is_installed, require
from infrastructure.monitoring.drawing.formatting import format_number

LINE_EVERY_SHARE = 0.05
LINE_EVERY_SECONDS = 60.0
RATE_WINDOW_SECONDS = 60.0
BAR_REFRESH_SECONDS = 0.2
BAR_FORMAT = "[{percentage:3.0f}%] {bar} step {n_fmt}/{total_fmt}{postfix}"
COUNT_FORMAT = "step {n_fmt}{postfix}"
GAP = "  "  # between two numbers

if TYPE_CHECKING:
    _Tqdm = tqdm[NoReturn]
else:
    _Tqdm = tqdm  # generic only in its stubs

Clock = Callable[[], float]


def display_kind(stream: TextIO) -> str:
    """Return how `stream` can show progress: `notebook`, `bar` or `lines`."""
    if in_notebook_kernel():
        return "notebook" if is_installed("ipywidgets") else "lines"
    return "bar" if shows_bars(stream) else "lines"


class ProgressDisplay(Protocol):
    """The interface of a progress display. A display that raises OSError or ValueError is switched
    off.
    """

    def update(
        self, step: int, loss: float | None = None, tokens_per_second: float | None = None
    ) -> None:
        """Show the metrics of a step. Called in the thread that trains."""

    def close(self) -> None:
        """End the display, because the run has ended."""


def place_of_step(step: float, total_steps: int) -> str:
    """Return `[ 55%] step 550/999`, or `step 550` if the number of steps is unknown."""
    if not total_steps:
        return f"step {step:,}"
    return f"[{100 * step / total_steps:3.0f}%] step {step:,}/{total_steps:,}"


class RecentRate:
    """A meter of steps per second over the last minute, for estimating the remaining time."""

    def __init__(self, step: int, clock: Clock) -> None:
        self.clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), step)])

    def update(self, step: int) -> None:
        now = self.clock()
        self._seen.append((now, step))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_WINDOW_SECONDS:
            self._seen.popleft()

    def seconds_left(self, total_steps: int) -> float | None:
        """Return the estimated seconds until the run ends; None if there is no estimate yet."""
        (first_time, first_step), (last_time, last_step) = self._seen[0], self._seen[-1]
        if not total_steps or last_step <= first_step:
            return None
        return (total_steps - last_step) * (last_time - first_time) / (last_step - first_step)


class Progress:
    """A display of step, loss, tokens per second and remaining time.

    Args:
        total_steps: steps of the whole run. 0 if unknown.
        step: steps already done when the run resumes.
        stream: where to show the progress. Standard error by default.
        kind: `bar`, `lines` or `notebook`. By default the best that the stream supports.
        clock: returns seconds, counted from any start.
        note: returns further text to show, or None.
    """

    def __init__(
        self,
        total_steps: int,
        step: int = 0,
        stream: TextIO | None = None,
        kind: str | None = None,
        clock: Clock = time.monotonic,
        note: Callable[[], str | None] = do_nothing,
    ) -> None:
        self.total_steps = total_steps
        self.note = note
        self._rate = RecentRate(step, clock)
        self._numbers: dict[str, str] = {}
        stream = stream or sys.stderr
        kind = kind or display_kind(stream)
        self._display: _Bar | _Lines
        if kind == "lines":
            self._display = _Lines(total_steps, step, stream, clock)
        else:
            self._display = _Bar(total_steps, step, stream, kind)

    def update(
        self, step: int, loss: float | None = None, tokens_per_second: float | None = None
    ) -> None:
        """Show that `step` steps are done. For an argument that is None, show its last value again.

        Raises:
            OSError, ValueError: the stream is closed.
        """
        self._rate.update(step)
        if loss is not None:
            self._numbers["loss"] = f"loss {format_number(loss)}"
        if tokens_per_second:  # a trainer of TRL may count none
            self._numbers["rate"] = f"{format_number(round(tokens_per_second))} tok/s"
        left = self._rate.seconds_left(self.total_steps)
        if left is not None:
            self._numbers["left"] = f"ETA {tqdm.format_interval(left)}"
        parts = [*self._numbers.values(), self.note()]
        self._display.show(step, GAP.join(part for part in parts if part))

    def close(self) -> None:
        """Show the last state and leave the cursor on a new line."""
        self._display.close()


Note = Callable[[], str | None]
MakeProgress = Callable[[int, int, Note], ProgressDisplay]


def make_progress(total_steps: int, step: int, note: Note) -> ProgressDisplay:
    """Create the best progress display that standard error supports."""
    return Progress(total_steps, step, note=note)


class _QuietTqdm(_Tqdm):
    monitor_interval = 0  # every step updates the bar, so no monitor thread is needed


class _Bar:
    def __init__(self, total_steps: int, step: int, stream: TextIO, kind: str) -> None:
        options: dict[str, Any] = {
            "total": total_steps or None,
            "initial": step,
            "bar_format": BAR_FORMAT if total_steps else COUNT_FORMAT,
            "miniters": 1,
            "mininterval": BAR_REFRESH_SECONDS,
        }
        if kind == "notebook":
            self._bar = require("tqdm.notebook", "training.progress_bar").tqdm(**options)
        else:
            self._bar = _QuietTqdm(file=stream, dynamic_ncols=True, **options)

    def show(self, step: int, text: str) -> None:
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(step - self._bar.n)

    def close(self) -> None:
        self._bar.refresh()
        self._bar.close()


class _Lines:
    def __init__(self, total_steps: int, step: int, stream: TextIO, clock: Clock) -> None:
        self._total_steps = total_steps
        self._stream = stream
        self._clock = clock
        self._shown_step = step
        self._shown_time = clock()
        self._last: tuple[int, str] = (step, "")

    def show(self, step: int, text: str) -> None:
        self._last = (step, text)
        few_percent = self._total_steps * LINE_EVERY_SHARE
        far = self._total_steps > 0 and step - self._shown_step >= few_percent
        if far or self._clock() - self._shown_time >= LINE_EVERY_SECONDS:
            self._print()

    def close(self) -> None:
        if self._last[0] != self._shown_step:
            self._print()

    def _print(self) -> None:
        step, text = self._last
        self._stream.write(f"{place_of_step(step, self._total_steps)}{GAP}{text}\n")
        self._stream.flush()
        self._shown_step, self._shown_time = step, self._clock()
