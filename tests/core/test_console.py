"""Lines for a person: above a bar, in colour where that is wanted, and never long silent."""

import io
import os
import re
import sys
import threading
import time
import types

import pytest
from tqdm import tqdm

from infrastructure.core import console
from infrastructure.core.console import Count, Report, details, show, styled, waiting_beside


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_of_those_who_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("x", console.RED, Terminal()) == "\033[31mx\033[0m"
    assert styled("x", console.RED, io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", console.RED, Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert styled("x", console.RED, Terminal()) == "x"


def test_a_line_goes_above_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    with tqdm(total=10, desc="training", file=screen, ncols=40) as bar:
        bar.update(3)
        show("note: something")
    before, _, after = screen.getvalue().partition("note: something\n")
    assert before.endswith("\r"), "the bar is gone from the line"
    assert "training" in after, "it is drawn again below"


def test_a_line_is_written_while_the_bars_are_being_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))  # half of it
    show("note: something")
    assert capsys.readouterr().out == "note: something\n"


def test_details_are_for_those_who_want_them() -> None:
    for is_verbose, shown in ((False, ["all"]), (True, ["all", "more"])):
        lines: list[str] = []
        report = Report(lines.append, is_verbose)
        report("all")
        details(report)("more")
        assert lines == shown
    details(lines.append)("more")
    assert lines == shown


def wait_for(lines: list[str], number: int) -> None:
    patience = time.monotonic() + 60
    while len(lines) < number and time.monotonic() < patience:
        time.sleep(0.01)


def test_a_silence_is_broken_and_the_less_often_the_longer_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console, "SILENT_SECONDS", 0.02)
    monkeypatch.setattr(console, "LOOK_SECONDS", 0.01)
    lines: list[str] = []
    report = Report(lines.append)
    with report.waiting("loading the model"):
        wait_for(lines, 2)
    assert re.fullmatch(r"… loading the model \(\d+ s\)", lines[0])
    count = len(lines)
    time.sleep(0.05)
    assert len(lines) == count


def test_where_nobody_reads_any_more_no_word_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after `| head`: the work goes on, and no thread ends in an error."""
    monkeypatch.setattr(console, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(console, "LOOK_SECONDS", 0.01)
    tried: list[str] = []
    ended_in: list[object] = []
    monkeypatch.setattr(threading, "excepthook", ended_in.append)

    def closed(line: str) -> None:
        tried.append(line)
        raise BrokenPipeError

    with Report(closed).waiting("loading the model"):
        wait_for(tried, 1)
        time.sleep(0.05)
    assert len(tried) == 1
    assert ended_in == []


def test_beside_a_result_the_word_stands_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "SILENT_SECONDS", 0.02)
    monkeypatch.setattr(console, "LOOK_SECONDS", 0.01)
    errors: list[str] = []
    with waiting_beside("answering"):
        patience = time.monotonic() + 60
        while not errors and time.monotonic() < patience:
            time.sleep(0.01)
            out, error = capsys.readouterr()
            assert out == ""
            errors += error.splitlines()
    assert re.fullmatch(r"… answering \(\d+ s\)", errors[0])


def test_at_a_terminal_one_line_is_drawn_again_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "SILENT_AT_TERMINAL_SECONDS", 0.0)
    monkeypatch.setattr(console, "LOOK_SECONDS", 0.01)
    # of which one is drawn in each second
    monkeypatch.setattr(console, "time", types.SimpleNamespace(monotonic=lambda: 1000.0))
    lines: list[str] = []
    with Report(lines.append).waiting("loading"):
        patience = time.monotonic() + 60
        while "loading" not in screen.getvalue() and time.monotonic() < patience:
            time.sleep(0.01)
    assert screen.getvalue().count("loading") == 1
    assert screen.getvalue().endswith("\r\033[K")
    assert lines == []


class Waiting:
    """Time that passes only where a thread waits; the block ends after `seconds`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds = 1000.0, seconds
        monkeypatch.setattr(console, "time", types.SimpleNamespace(monotonic=lambda: self.now))

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now > 1000.0 + self.seconds


def test_a_long_silence_is_broken_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, lines = Waiting(monkeypatch, seconds=200), list[str]()
    Report(lines.append)._break_silence("loading", ended)  # type: ignore[arg-type]
    seconds = (5, 10, 15, 20, 25, 30, 35, 41, 48, 56, 66, 76, 90, 104, 122, 142, 162, 182)
    assert [re.sub(r"\D", "", line) for line in lines] == [*map(str, seconds)]


def test_at_a_terminal_a_silence_is_broken_after_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(console, "_columns", lambda _: 30)
    ended, report = Waiting(monkeypatch, seconds=4.2), Report([].append)
    report._break_silence("loading all of a model", ended)  # type: ignore[arg-type]
    console._WAITING.erase()
    text = "\r\033[K… loading all of a model ({} s)"
    shown = [text.format(number)[:33] for number in (2, 3, 4)]
    assert screen.getvalue() == "".join([*shown, "\r\033[K"])


@pytest.mark.parametrize(
    ("line", "style"),
    [
        ("note: a", console.YELLOW),
        ("It does not fit: a", console.RED),
        ("Forecast: a", console.BOLD),
        ("ALERT (critical) a", console.RED),
        ("ALERT (warning) a", console.YELLOW),
        ("… a", console.DIM),
        ("a note: b", ""),
    ],
)
def test_a_line_is_drawn_by_its_beginning(
    line: str, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, error = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", error)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(line)
    console.show_beside(line)
    drawn = f"\033[{style}m{line}\033[0m\n" if style else f"{line}\n"
    assert (out.getvalue(), error.getvalue()) == (drawn, drawn)


@pytest.mark.parametrize(
    ("size", "has_bars"), [((80, 24), True), ((0, 0), False), ((80, 0), False), (None, True)]
)
def test_a_bar_needs_a_terminal_that_has_a_size(
    size: tuple[int, int] | None, has_bars: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size_of(_: int) -> os.terminal_size:
        if size is None:
            raise OSError
        return os.terminal_size(size)

    screen = Terminal()
    screen.fileno = lambda: 1  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console.os, "get_terminal_size", size_of)
    assert console.shows_bars(screen) is has_bars
    assert not console.shows_bars(io.StringIO())
    assert console._columns(screen) == (size[0] if size and size[0] else 80)


def test_words_may_change_while_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(console, "LOOK_SECONDS", 0.01)
    lines: list[str] = []
    steps = iter(range(1000))
    with Report(lines.append).waiting(lambda: f"step {next(steps)}"):
        until = time.monotonic() + 60
        while len(lines) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert [line.split(" (")[0] for line in lines[:2]] == ["… step 0", "… step 1"]


def test_how_much_is_done_stands_in_the_words_once_it_is_counted() -> None:
    count = Count("measuring", "answers")
    assert count.words() == "measuring"
    count(0, 1075)
    assert count.words() == "measuring, 1,075 answers to write"
    count(1032, 1075)
    assert count.words() == "measuring, 1,032 of 1,075 answers"
    count.begin("measuring the other one")
    assert count.words() == "measuring the other one"
