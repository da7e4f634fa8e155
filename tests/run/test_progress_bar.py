"""A bar is for people: at a terminal and in a notebook it is drawn, elsewhere nothing is."""

import io
import sys

import pytest
from tqdm import tqdm

from infrastructure.run import progress_bar as bars
from infrastructure.run.progress_bar import byte_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "is_notebook", "is_drawn"),
    [
        (Terminal(), False, True),
        (io.StringIO(), False, False),
        (io.StringIO(), True, True),
    ],
)
def test_a_bar_is_drawn_where_a_person_looks_on(
    stream: io.StringIO, is_notebook: bool, is_drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "in_notebook_kernel", lambda: is_notebook)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(tqdm, "monitor", None)  # other bars of this process may have begun one
    with byte_bar("verifying") as move:
        move(500, 1000)
        move(1000, 1000)
    assert ("verifying" in stream.getvalue()) is is_drawn
    assert ("100%" in stream.getvalue()) is is_drawn
    assert ("1.00k/1.00k" in stream.getvalue()) is is_drawn
    assert ("B/s" in stream.getvalue()) is is_drawn
    assert tqdm.monitor is None


def test_a_terminal_that_cannot_move_its_cursor_gets_no_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Terminal()
    monkeypatch.setattr(bars, "in_notebook_kernel", lambda: False)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "dumb")
    with byte_bar("verifying") as move:
        move(1000, 1000)
    assert stream.getvalue() == ""
