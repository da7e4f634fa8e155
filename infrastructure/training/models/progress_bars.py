"""The bars that transformers draws while it reads and writes weights."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from infrastructure.core.console import shows_bars
from infrastructure.core.optional import require


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Inside, transformers draws no bars; afterwards as before."""
    logging = require("transformers.utils.logging", "a quiet transformers")
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def progress_bars_in_a_terminal() -> AbstractContextManager[None]:
    """Inside, transformers draws its bars for a person, and not into a log file."""
    return nullcontext() if shows_bars(sys.stderr) else without_progress_bars()
