"""Output to the console: lines above progress bars, color on terminals, and messages during long
work.

Color is used on a terminal that is not `dumb`, unless NO_COLOR is set (https://no-color.org).
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO

from infrastructure.core.callbacks import do_nothing
from infrastructure.core.redact import redact

ShowLine = Callable[[str], None]

BOLD, DIM, RED, YELLOW = "1", "2", "31", "33"
# How a line is drawn, by its beginning.
STYLES = {
    "note: ": YELLOW,
    "It does not fit": RED,
    "Forecast: ": BOLD,
    "ALERT (critical)": RED,
    "ALERT": YELLOW,
    "… ": DIM,
}
SILENT_SECONDS = 5.0  # the longest silence
SILENT_AT_TERMINAL_SECONDS = 2.0
SILENT_IN_FILE_SECONDS = 20.0  # reached gradually: a file keeps all of its lines
LOOK_SECONDS = 0.5


def is_terminal(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal, on which lines can be redrawn."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def shows_bars(stream: TextIO) -> bool:
    """Return whether a progress bar can be drawn on `stream`.

    On a terminal that reports no size, such as that of `script`, tqdm would show only the end of
    the bar.
    """
    if not is_terminal(stream):
        return False
    try:
        return min(os.get_terminal_size(stream.fileno())) > 0
    except (OSError, ValueError):
        return True


def has_colour(stream: TextIO) -> bool:
    """Return whether `stream` shows colors and the user has not disabled them."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, style: str, stream: TextIO) -> str:
    """Return `text` in a style, if `stream` shows styles."""
    return f"\033[{style}m{text}\033[0m" if style and has_colour(stream) else text


def show(line: str) -> None:
    """Print a line on standard output, and redraw a progress bar below it if there is one."""
    _show_on(sys.stdout, line)


def show_beside(line: str) -> None:
    """Print a line on standard error, because another program may read the standard output."""
    _show_on(sys.stderr, line)


def _show_on(stream: TextIO, line: str) -> None:
    style = next((style for begin, style in STYLES.items() if line.startswith(begin)), "")
    write_above_bar(styled(line, style, stream), stream)


def write_above_bar(line: str, stream: TextIO) -> None:
    """Write a line on `stream`, above a progress bar on the terminal's last line."""
    _WAITING.erase()
    bar = _bar_class()
    if getattr(bar, "_instances", None):
        bar.write(line, file=stream)
    else:
        stream.write(f"{line}\n")
    stream.flush()


def _bar_class() -> Any:
    """Return tqdm's class of bars, or None if tqdm is not completely imported."""
    return getattr(sys.modules.get("tqdm"), "tqdm", None)


class Report:
    """A callable that shows lines to the user, with secrets masked.

    Args:
        show_line: a function that shows one line.
        is_verbose: whether to show details, too. If False, they are only in the run's files and
            report.
    """

    def __init__(self, show_line: ShowLine = show, is_verbose: bool = False) -> None:
        self.show_line, self.is_verbose = show_line, is_verbose
        self.last = time.monotonic()

    def __call__(self, line: str) -> None:
        self.last = time.monotonic()
        self.show_line(redact(line))

    def detail(self, line: str) -> None:
        """Show a line if verbose output is on."""
        if self.is_verbose:
            self(line)

    @contextmanager
    def waiting(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Return a context that shows a message if the block shows no other line for some seconds.

        Args:
            what: the message, or a function that returns it and must not raise.
        """
        self.last = time.monotonic()
        ended = threading.Event()
        thread = threading.Thread(target=self._break_silence, args=(what, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            _WAITING.erase()

    def _break_silence(self, what: str | Callable[[], str], ended: threading.Event) -> None:
        began, patience = time.monotonic(), SILENT_SECONDS
        while not ended.wait(LOOK_SECONDS):
            now = time.monotonic()
            silent = now - self.last
            if silent < (SILENT_AT_TERMINAL_SECONDS if is_terminal(sys.stderr) else patience):
                continue
            words = what if isinstance(what, str) else what()
            text = f"… {words} ({now - began:.0f} s)"
            try:
                if is_terminal(sys.stderr):
                    _WAITING.draw(text, sys.stderr)
                else:
                    self(text)
                    patience = min(max(SILENT_SECONDS, (now - began) / 6), SILENT_IN_FILE_SECONDS)
            except (OSError, ValueError):  # closed by its reader, as by `| head`
                return


class Count:
    """The progress of a long task, which `Report.waiting` shows as a message.

    Args:
        what: the task, such as "measuring the model".
        things: what is counted, in the plural, such as "answers".
    """

    def __init__(self, what: str, things: str) -> None:
        self.what, self.things = what, things
        self.num_done = self.total = 0

    def __call__(self, num_done: int, total: int) -> None:
        self.num_done, self.total = num_done, total

    def begin(self, what: str) -> None:
        """Begin to count from zero for the task `what`."""
        self.what, self.num_done, self.total = what, 0, 0

    def words(self) -> str:
        """Return the progress, such as `measuring the model, 32 of 75 answers`.

        Before the first count, only the task is returned.
        """
        if not self.total:
            return self.what
        if not self.num_done:  # the first ones come together: no progress to show yet
            return f"{self.what}, {self.total:,} {self.things} to write"
        return f"{self.what}, {self.num_done:,} of {self.total:,} {self.things}"


def waiting_beside(what: str | Callable[[], str]) -> AbstractContextManager[None]:
    """Show a waiting message as `Report.waiting` does, but on standard error."""
    return Report(show_beside).waiting(what)


def details(report: ShowLine) -> ShowLine:
    """Return a function that shows a line only if `report` is verbose."""
    return report.detail if isinstance(report, Report) else do_nothing


class _LastLine:
    """A line at a terminal that is redrawn in place, until another line is written."""

    def __init__(self) -> None:
        self._stream: TextIO | None = None
        self._text = ""
        self._lock = threading.Lock()

    def draw(self, text: str, stream: TextIO) -> None:
        with self._lock:
            if getattr(_bar_class(), "_instances", None):
                return  # a bar is drawn on that line
            if self._stream is stream and self._text == text:
                return
            self._text = text
            width = max(20, _columns(stream) - 1)
            stream.write(f"\r\033[K{styled(text[:width], DIM, stream)}")
            stream.flush()
            self._stream = stream

    def erase(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.write("\r\033[K")
                stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


_WAITING = _LastLine()
