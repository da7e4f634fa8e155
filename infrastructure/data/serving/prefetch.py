"""Prefetching of batches in a background thread while the model works on the current one."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

Item = TypeVar("Item")


class _End:
    """A marker for the end of the items."""


def prefetch(items: Iterable[Item], depth: int) -> Generator[Item, None, None]:
    """Yield the items in the same order, while a thread builds up to `depth` of them ahead.

    If building an item raises an exception, it is raised in place of that item. Closing the
    generator ends the thread and closes `items`.
    """
    source = iter(items)
    unread = chain(source)  # never reads a source again that has ended

    def build() -> Item | _End:
        return next(unread, _End())

    pool = ThreadPoolExecutor(1, "temper-prefetch")
    try:
        ahead = deque(pool.submit(build) for _ in range(depth))
        while not isinstance(item := ahead.popleft().result(), _End):
            ahead.append(pool.submit(build))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
        if isinstance(source, Generator):
            source.close()
