"""A question to the user: only a clear yes is a yes."""

import io
import sys

import pytest

from infrastructure.commands.questions import confirmed


class Stream(io.StringIO):
    def __init__(self, text: str = "", is_terminal: bool = True) -> None:
        super().__init__(text)
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("answer", "is_yes"),
    [
        ("y\n", True),
        (" Yes \n", True),
        ("yep\n", False),
        ("n\n", False),
        ("\n", False),
        ("", False),
    ],
)
def test_only_y_and_yes_are_yes(answer: str, is_yes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stream(answer))
    monkeypatch.setattr(sys, "stdout", screen := Stream())
    assert confirmed("Sure?") is is_yes
    assert screen.getvalue() == "Sure? [y/N] "


@pytest.mark.parametrize("terminals", [(False, True), (True, False)])
def test_without_a_terminal_the_answer_is_no(
    terminals: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Stream("y\n", terminals[0]))
    monkeypatch.setattr(sys, "stdout", screen := Stream(is_terminal=terminals[1]))
    assert not confirmed("Sure?")
    assert screen.getvalue() == ""
