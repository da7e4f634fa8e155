"""The progress display in a real terminal (a pty), in a pipe, and in a notebook's kernel."""

import fcntl
import io
import math
import os
import pty
import struct
import sys
import termios
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pytest
from huggingface_hub.utils import are_progress_bars_disabled
from tqdm import tqdm
from transformers.utils.logging import is_progress_bar_enabled

from infrastructure.core.console import show
from infrastructure.models.progress_bars import download_bars_in_a_terminal
from infrastructure.training.metrics.progress import Progress, RecentRate, display_kind

COLUMNS = 100


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Terminal:
    """The program's end as a stream, and everything that it has sent."""

    stream: TextIO
    screen_side: int
    sent: bytes = field(default=b"")

    def read(self) -> str:
        self.stream.flush()
        os.set_blocking(self.screen_side, False)
        while True:
            try:
                chunk = os.read(self.screen_side, 1 << 16)
            except BlockingIOError:
                return self.sent.decode().replace("\r\n", "\n")
            self.sent += chunk

    def lines(self) -> list[str]:
        """What stays on the screen: after a carriage return a line is written over."""
        lines = []
        for line in self.read().split("\n"):
            shown = ""
            for piece in line.split("\r"):
                shown = piece + shown[len(piece) :]
            lines.append(shown.rstrip())
        return lines


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    screen_side, program_side = pty.openpty()
    fcntl.ioctl(program_side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with os.fdopen(program_side, "w") as stream:
        yield Terminal(stream, screen_side)
    os.close(screen_side)


def test_a_terminal_gets_one_bar_that_is_written_over(terminal: Terminal) -> None:
    progress = Progress(200, stream=terminal.stream)
    for step in range(1, 201):
        progress.update(step, loss=5.0 / step, tokens_per_second=4769.2)
    progress.close()
    assert "\r" in terminal.read()
    line, after = terminal.lines()
    assert line.startswith("[100%] ")
    assert line.endswith(" step 200/200, loss 0.02500  4,769 tok/s  ETA 00:00")
    assert len(line) <= COLUMNS
    assert after == ""


def test_a_terminal_without_a_size_gets_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl.ioctl(terminal.stream, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with download_bars_in_a_terminal():
        assert not is_progress_bar_enabled()
        assert are_progress_bars_disabled()
    progress = Progress(20, stream=terminal.stream)
    for step in range(1, 21):
        progress.update(step, loss=1.0)
    progress.close()
    assert len(terminal.lines()) == 21
    assert terminal.lines()[0].startswith("[  5%] step 1/20  loss 1  ETA ")


def test_a_resumed_bar_begins_where_the_run_stood(terminal: Terminal) -> None:
    progress = Progress(200, step=150, stream=terminal.stream)
    assert terminal.lines()[-1].startswith("[ 75%] ")
    assert terminal.lines()[-1].endswith(" step 150/200")
    progress.update(151, loss=math.nan)
    progress.close()
    assert "151/200, loss NaN" in terminal.lines()[0]


def test_a_line_printed_meanwhile_stands_above_the_bar(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    progress = Progress(10, stream=terminal.stream)
    progress.update(5, loss=1.0)
    show("held-out loss 2.5")
    progress.update(10, loss=0.5)
    progress.close()
    lines = terminal.lines()
    assert lines[0] == "held-out loss 2.5"
    assert "10/10, loss 0.5000" in lines[1]
    assert lines[2:] == [""]


def test_a_bar_without_a_known_end_counts(terminal: Terminal) -> None:
    progress = Progress(0, stream=terminal.stream)
    progress.update(7, loss=1.5)
    progress.close()
    assert terminal.lines()[0] == "step 7, loss 1.500"


def test_a_bar_leaves_no_thread_behind(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tqdm, "monitor", None)  # other bars of this process may have begun one
    Progress(10, stream=terminal.stream).close()
    assert tqdm.monitor is None


def test_a_log_file_gets_a_line_every_five_percent(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "log.txt"
    with path.open("w") as stream:
        progress = Progress(1000, stream=stream, clock=clock)
        for step in range(1, 1001):
            clock.now += 0.5
            progress.update(step, loss=1.0 if step < 500 else math.nan, tokens_per_second=2310.7)
        progress.close()
    text = path.read_text()
    assert "\r" not in text
    lines = text.splitlines()
    assert len(lines) == 20
    assert lines[0] == "[  5%] step 50/1,000  loss 1  2,311 tok/s  ETA 07:55"
    assert "loss NaN" in lines[10]
    assert lines[-1].startswith("[100%] step 1,000/1,000  ")


def test_a_slow_training_prints_a_line_every_minute() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(1000, stream=stream, clock=clock)
    for step in range(1, 11):
        clock.now += 20.0
        progress.update(step, loss=1.0)
    steps = [line.split("  loss ")[0] for line in stream.getvalue().splitlines()]
    assert steps == ["[  0%] step 3/1,000", "[  1%] step 6/1,000", "[  1%] step 9/1,000"]
    progress.close()
    assert stream.getvalue().splitlines()[-1].startswith("[  1%] step 10/1,000  ")


def test_closing_right_after_the_start_prints_nothing() -> None:
    stream = io.StringIO()
    Progress(100, step=40, stream=stream).close()
    assert stream.getvalue() == ""


def test_a_number_stays_until_the_next() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(0, stream=stream, clock=clock)
    for step, loss in ((1, 2.0), (2, None)):
        clock.now += 60
        progress.update(step, loss)
    assert stream.getvalue().splitlines() == ["step 1  loss 2", "step 2  loss 2"]


def test_a_note_comes_last_as_long_as_there_is_one() -> None:
    stream, notes = io.StringIO(), iter([None, "saved", ""])
    progress = Progress(4, stream=stream, clock=Clock(), note=lambda: next(notes))
    for step in (1, 2, 3):
        progress.update(step, 2.0, tokens_per_second=0.0)
    assert [line.rpartition("loss ")[2] for line in stream.getvalue().splitlines()] == [
        *("2  ETA 00:00", "2  ETA 00:00  saved", "2  ETA 00:00"),
    ]


def test_the_time_left_follows_what_happens_now() -> None:
    clock = Clock()
    rate = RecentRate(0, clock)
    assert rate.seconds_left(1000) is None
    for step in range(1, 101):  # slow at first
        clock.now += 10.0
        rate.update(step)
    for step in range(101, 301):  # then ten times as fast
        clock.now += 1.0
        rate.update(step)
    assert rate.seconds_left(1000) == pytest.approx(700.0, rel=0.01)
    clock.now = 0.0
    rate = RecentRate(0, clock)
    for seconds, step in ((50.0, 1), (100.0, 11)):
        clock.now = seconds
        rate.update(step)
    assert rate.seconds_left(100) == pytest.approx(89 * 100 / 11)  # of a minute at least
    assert rate.seconds_left(0) is None


def test_the_kind_of_display_follows_the_stream(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert display_kind(terminal.stream) == "bar"
    assert display_kind(io.StringIO()) == "lines"
    monkeypatch.setenv("TERM", "dumb")
    assert display_kind(terminal.stream) == "lines"


def test_a_kernel_with_ipywidgets_gets_a_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)  # type: ignore[arg-type]
    assert display_kind(io.StringIO()) == "notebook"
    monkeypatch.setattr(
        "infrastructure.training.metrics.progress.is_installed", lambda package: False
    )
    assert display_kind(io.StringIO()) == "lines"


def test_a_terminal_ipython_is_a_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", shell)  # type: ignore[arg-type]
    assert display_kind(terminal.stream) == "bar"


def test_the_widget_shows_the_same_numbers() -> None:
    progress = Progress(10, step=4, kind="notebook")
    progress.update(5, loss=math.nan, tokens_per_second=100.0)
    progress.close()
    bar = progress._display._bar  # type: ignore[union-attr]
    figure_space = "\u2007"
    values = [str(part.value).replace(figure_space, " ") for part in bar.container.children]
    assert bar.n == 5
    assert any("step 5/10, loss NaN  100 tok/s" in value for value in values)
