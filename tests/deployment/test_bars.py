"""A bar is for people: on a terminal it is drawn, elsewhere nothing is."""

import io
import sys

import pytest
from tqdm import tqdm

from infrastructure.deployment.bars import byte_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "is_drawn"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_bar_is_drawn_on_a_terminal_only(
    stream: io.StringIO, is_drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with byte_bar("verifying") as tell:
        tell(500, 1000)
        tell(1000, 1000)
    assert ("verifying" in stream.getvalue()) is is_drawn
    assert ("100%" in stream.getvalue()) is is_drawn
    assert tqdm.monitor is None
