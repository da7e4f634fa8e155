"""Control of the progress bars that transformers shows while it reads and writes weights."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from infrastructure.core.console import shows_bars
from infrastructure.core.optional import require


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars inside the block."""
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
    """Show the progress of downloads inside the block, in a terminal but not in a log file.

    Downloads may take long. transformers' own bars are hidden, because the run's own lines report
    what is done.
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
