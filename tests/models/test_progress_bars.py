import sys

import pytest
from huggingface_hub.utils import are_progress_bars_disabled
from transformers.utils import logging

from infrastructure.models.progress_bars import (
    download_bars_in_a_terminal,
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
def test_a_terminal_has_bars_of_downloads_alone(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    for _ in range(2):  # what was before is there again
        with download_bars_in_a_terminal():
            assert not logging.is_progress_bar_enabled()
            assert are_progress_bars_disabled() is not is_terminal
        assert logging.is_progress_bar_enabled()
        assert not are_progress_bars_disabled()
    with without_progress_bars(), download_bars_in_a_terminal():
        assert are_progress_bars_disabled()
