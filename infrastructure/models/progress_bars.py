"""Control of the progress bars that transformers shows while it reads and writes weights."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from infrastructure.core.console import shows_bars
from infrastructure.core.optional import require


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars while the context lasts."""
    logging = require("transformers.utils.logging", "models.load_model")
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


@contextmanager
def download_bars_in_a_terminal() -> Iterator[None]:
    """Show download progress in a terminal, but not in a log file, while the context lasts.

    transformers' other progress bars are hidden, because the run reports these steps itself.
    """
    hub = require("huggingface_hub.utils", "models.load_from_hub")
    was_enabled = not hub.are_progress_bars_disabled()
    with without_progress_bars():
        if was_enabled and shows_bars(sys.stderr):
            hub.enable_progress_bars()
        try:
            yield
        finally:
            set_shown = hub.enable_progress_bars if was_enabled else hub.disable_progress_bars
            set_shown()
