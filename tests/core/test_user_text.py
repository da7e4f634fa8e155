"""Texts from outside are noted where they may hold a name of a setting."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.core import user_text as module
from infrastructure.core.user_text import (
    forget_user_texts,
    note_user_values,
    user_text,
    user_texts,
)


@pytest.fixture(autouse=True)
def no_texts() -> Iterator[None]:
    forget_user_texts()
    yield
    forget_user_texts()


NAMES = ["--lr", "a.b", "a_b", "(x", "`x", "verbose", "device", "unknown\n key", "Ctrl-C"]


@pytest.mark.parametrize("text", NAMES)
def test_a_text_that_may_hold_a_name_is_noted_once(text: str) -> None:
    assert user_text(text) == user_text(text) == text
    assert user_texts() == (text,)


@pytest.mark.parametrize("text", ["", "plain words", "A.B", "a-b", "1_2", "unknownkey", "Ctrl"])
def test_a_text_that_can_hold_no_name_is_not_kept(text: str) -> None:
    assert user_text(text) == text
    assert user_texts() == ()


def test_the_texts_of_values_are_noted_wherever_they_lie() -> None:
    note_user_values("a.a", None, 3, b"b.b", {"c.c": ["d.d", ("e.e", {"f.f"})]}, Path("g.g"))
    assert user_texts() == ("a.a", "c.c", "d.d", "e.e", "f.f", "g.g")
    forget_user_texts()
    assert user_texts() == ()


def test_no_more_than_a_number_of_texts_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NOTED", 2)
    note_user_values("a.a", "b.b", "c.c")
    assert user_texts() == ("a.a", "b.b")
