"""Lines for a person: above a progress bar, in colour where a terminal has it, never silent for
long.

Colour is for a terminal that is not `dumb`, where NO_COLOR is not set (https://no-color.org).
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
# What a line begins with, and how it is drawn.
STYLES = {
    "note: ": YELLOW,
    "It does not fit": RED,
    "Forecast: ": BOLD,
    "ALERT (critical)": RED,
    "ALERT": YELLOW,
    "… ": DIM,
}
SILENT_SECONDS = 5.0  # nobody waits longer without a word
SILENT_AT_TERMINAL_SECONDS = 2.0
SILENT_IN_FILE_SECONDS = 20.0  # in the end: a file keeps all of its lines
LOOK_SECONDS = 0.5


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be drawn again on `stream`."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def shows_bars(stream: TextIO) -> bool:
    """Whether a bar can be drawn on `stream`: of one without a size, as `script` makes, tqdm shows
    the end of the line alone."""
    if not is_terminal(stream):
        return False
    try:
        return min(os.get_terminal_size(stream.fileno())) > 0
    except (OSError, ValueError):
        return True


def has_colour(stream: TextIO) -> bool:
    """Whether `stream` shows colours, and its person wants them."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, style: str, stream: TextIO) -> str:
    """`text` in a style, where `stream` shows any."""
    return f"\033[{style}m{text}\033[0m" if style and has_colour(stream) else text


def show(line: str) -> None:
    """Print a line on standard output; a progress bar on the screen is drawn again below it."""
    _show_on(sys.stdout, line)


def show_beside(line: str) -> None:
    """As `show`, on standard error: beside a result that a program may read."""
    _show_on(sys.stderr, line)


def _show_on(stream: TextIO, line: str) -> None:
    style = next((style for begin, style in STYLES.items() if line.startswith(begin)), "")
    write_above_bar(styled(line, style, stream), stream)


def write_above_bar(line: str, stream: TextIO) -> None:
    """Write a line on `stream`; what is drawn on the terminal's last line makes room for it."""
    _WAITING.erase()
    bar = _bar_class()
    if getattr(bar, "_instances", None):
        bar.write(line, file=stream)
    else:
        stream.write(f"{line}\n")
    stream.flush()


def _bar_class() -> Any:
    """The bars of tqdm; None where nothing has imported it, or another thread is just doing so."""
    return getattr(sys.modules.get("tqdm"), "tqdm", None)


class Report:
    """Shows lines to a person, without secrets.

    Args:
        show_line: shows one.
        is_verbose: details are shown, too; otherwise the run's files and its report have them.
    """

    def __init__(self, show_line: ShowLine = show, is_verbose: bool = False) -> None:
        self.show_line, self.is_verbose = show_line, is_verbose
        self.last = time.monotonic()

    def __call__(self, line: str) -> None:
        self.last = time.monotonic()
        self.show_line(redact(line))

    def detail(self, line: str) -> None:
        """Show a line to who wants to know more."""
        if self.is_verbose:
            self(line)

    @contextmanager
    def waiting(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Inside, a silence of some seconds is ended by a word on `what` is done.

        Args:
            what: words, or what gives them each time; that must not raise.
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
            except (OSError, ValueError):  # nobody reads any more: closed, as by `| head`
                return


class Count:
    """How much is done of what takes long, in words for `Report.waiting`.

    Args:
        what: is done.
        things: what is counted.
    """

    def __init__(self, what: str, things: str) -> None:
        self.what, self.things = what, things
        self.num_done = self.total = 0

    def __call__(self, num_done: int, total: int) -> None:
        self.num_done, self.total = num_done, total

    def begin(self, what: str) -> None:
        """Count anew, of something else."""
        self.what, self.num_done, self.total = what, 0, 0

    def words(self) -> str:
        """`measuring the model, 32 of 75 answers`; before the first count without it."""
        if not self.total:
            return self.what
        if not self.num_done:  # the first of them come together: no number yet says how far it is
            return f"{self.what}, {self.total:,} {self.things} to write"
        return f"{self.what}, {self.num_done:,} of {self.total:,} {self.things}"


def waiting_beside(what: str | Callable[[], str]) -> AbstractContextManager[None]:
    """As `Report.waiting`, with all its words on standard error."""
    return Report(show_beside).waiting(what)


def details(report: ShowLine) -> ShowLine:
    """What shows lines to who wants to know more than `report` tells everybody."""
    return report.detail if isinstance(report, Report) else do_nothing


class _LastLine:
    """A line at a terminal that is drawn again in place, until another line comes."""

    def __init__(self) -> None:
        self._stream: TextIO | None = None
        self._text = ""
        self._lock = threading.Lock()

    def draw(self, text: str, stream: TextIO) -> None:
        with self._lock:
            if getattr(_bar_class(), "_instances", None):
                return  # a bar is drawn there
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
