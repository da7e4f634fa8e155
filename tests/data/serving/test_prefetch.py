"""Prefetching changes no order, hides no error and leaves no thread."""

import threading
from collections.abc import Iterator

import pytest

from infrastructure.core.errors import DataError
from infrastructure.data.serving import prefetch as module
from infrastructure.data.serving.prefetch import prefetch


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "prefetch" in thread.name]


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_the_same_items_in_the_same_order(depth: int) -> None:
    assert list(prefetch(range(20), depth)) == list(range(20))
    assert threads() == []


def test_as_many_as_given_are_made_ahead_and_no_more() -> None:
    made: list[int] = []
    third = threading.Event()

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 3:
                third.set()
            yield number

    ahead = prefetch(items(), 3)
    assert next(ahead) == 0
    assert third.wait(60)
    ahead.close()
    assert made == [0, 1, 2, 3]
    assert threads() == []


def test_closing_early_ends_thread_and_source() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    source = items()  # held here, so that only an explicit close ends it
    ahead = prefetch(source, 2)
    next(ahead)
    assert threads() == ["temper-prefetch"]
    ahead.close()
    assert closed.is_set()
    assert threads() == []


def test_an_error_comes_out_where_its_item_would() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("broken")

    ahead = prefetch(items(), 2)
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="broken"):
        next(ahead)
    assert threads() == []


def test_a_generator_that_is_never_started_starts_no_thread() -> None:
    prefetch(range(3), 2).close()
    assert threads() == []


def test_a_thread_that_died_without_a_word_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(threading.Thread, "run", lambda self: None)
    with pytest.raises(DataError, match=r"data\.batch_thread_died"):
        list(prefetch(range(3), 2))


class Counted:
    """Gives two items, and counts how often it is asked."""

    def __init__(self) -> None:
        self.num_read = 0

    def __iter__(self) -> "Counted":
        return self

    def __next__(self) -> int:
        self.num_read += 1
        if self.num_read > 2:
            raise StopIteration
        return self.num_read


def test_what_has_ended_is_not_read_again() -> None:
    items = Counted()
    assert list(prefetch(items, 8)) == [1, 2]
    assert items.num_read == 3
