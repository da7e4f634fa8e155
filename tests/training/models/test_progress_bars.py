import sys

import pytest
from transformers.utils import logging

from infrastructure.training.models.progress_bars import (
    progress_bars_in_a_terminal,
    without_progress_bars,
)


def test_what_was_chosen_comes_back() -> None:
    with without_progress_bars():
        assert not logging.is_progress_bar_enabled()
        with without_progress_bars():
            pass
        assert not logging.is_progress_bar_enabled()
    assert logging.is_progress_bar_enabled()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_bars_are_for_a_terminal(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with progress_bars_in_a_terminal():
        assert logging.is_progress_bar_enabled() is is_terminal
    assert logging.is_progress_bar_enabled()
