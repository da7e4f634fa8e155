"""A progress bar for long operations, shown on a terminal or in a notebook."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from tqdm import tqdm

from infrastructure.core.notebook import in_notebook_kernel

if TYPE_CHECKING:
    _Tqdm = tqdm[NoReturn]
else:
    _Tqdm = tqdm  # generic only in its stubs

MoveBar = Callable[[int, int | None], None]


class _QuietTqdm(_Tqdm):
    monitor_interval = 0  # each call updates the bar; no monitoring thread is needed


@contextmanager
def byte_bar(what: str) -> Iterator[MoveBar]:
    """Yield a function that updates a progress bar, given the number of bytes done and in total.

    The bar is shown only on a terminal or in a notebook. A total of None means that the total is
    unknown.
    """
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    bar = _QuietTqdm(
        desc=what,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=not (is_terminal or in_notebook_kernel()),
        dynamic_ncols=True,
    )

    def move_bar(done_bytes: int, total_bytes: int | None) -> None:
        bar.total = total_bytes
        bar.update(done_bytes - bar.n)

    try:
        yield move_bar
    finally:
        bar.close()
