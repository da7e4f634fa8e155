"""Prefetching of batches in a background thread while the model works on the current one."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

from infrastructure.core.errors import DataError

LOOK_SECONDS = 1.0

Item = TypeVar("Item")


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    """A marker for the end of the items."""


def prefetch(items: Iterable[Item], depth: int) -> Generator[Item, None, None]:
    """Yield the items in the same order, while a thread builds up to `depth` of them ahead.

    If building an item raises an exception, it is raised in place of that item. Closing the
    generator ends the thread and closes `items`.
    """
    ready: queue.SimpleQueue[Item | _End | _Failure] = queue.SimpleQueue()
    free_slots = threading.Semaphore(depth)
    stopped = threading.Event()

    def work() -> None:
        iterator = iter(items)
        try:
            item: Item | _End | None = None
            while not isinstance(item, _End) and free_slots.acquire() and not stopped.is_set():
                item = next(iterator, _End())
                ready.put(item)
        except BaseException as error:  # raised again in the consumer
            ready.put(_Failure(error))
        finally:
            if isinstance(iterator, Generator):
                iterator.close()

    thread = threading.Thread(target=work, name="temper-prefetch", daemon=True)
    thread.start()
    try:
        yield from _taken(ready, free_slots, thread)
    finally:
        stopped.set()
        free_slots.release()
        thread.join()


def _taken(
    ready: "queue.SimpleQueue[Item | _End | _Failure]",
    free_slots: threading.Semaphore,
    thread: threading.Thread,
) -> Generator[Item, None, None]:
    while not isinstance(item := _next(ready, thread), _End):
        if isinstance(item, _Failure):
            raise item.error
        free_slots.release()
        yield item


def _next(ready: "queue.SimpleQueue[Item]", thread: threading.Thread) -> Item:
    """Return the next item; raise DataError if the thread has died."""
    while True:
        lived = thread.is_alive()
        try:
            return ready.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            if not lived:
                raise DataError("data.batch_thread_died") from None
