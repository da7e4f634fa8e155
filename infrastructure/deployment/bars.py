"""A progress bar for what takes long: on a terminal only, never in what a program reads."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

Told = Callable[[int, int], None]


class _QuietTqdm(tqdm):
    monitor_interval = 0  # what is told moves the bar; no watching thread is needed


@contextmanager
def byte_bar(what: str) -> Iterator[Told]:
    """Inside, a call with (bytes done, bytes in all) moves the bar, where there is a terminal."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    bar = _QuietTqdm(
        desc=what,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=not is_terminal,
        dynamic_ncols=True,
    )

    def tell(done_bytes: int, total_bytes: int) -> None:
        bar.total = total_bytes
        bar.update(done_bytes - bar.n)

    try:
        yield tell
    finally:
        bar.close()
