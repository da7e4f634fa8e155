"""Processes give results in order, few chunks are under way at a time, and a death is told."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from infrastructure.core.errors import DataError
from infrastructure.training.data.row_worker import CHUNKS_PER_WORKER, Chunk, PreparedChunk, work_on


class Counting:
    """Stands for the worker: gives the chunk's number back. Light enough to start quickly."""

    def __call__(self, chunk: Chunk) -> PreparedChunk:
        sum(range(100_000 * (chunk.file % 3)))  # some take longer
        return PreparedChunk(chunk.file, 0, [])


class Dying:
    """Ends its process, as one that ran out of memory."""

    def __call__(self, chunk: Chunk) -> PreparedChunk:
        os._exit(1)


def test_results_come_in_order_and_few_are_under_way() -> None:
    taken: list[int] = []

    def chunks() -> Iterator[Chunk]:
        for number in range(30):
            taken.append(number)
            yield Chunk(number, 0, [])

    worker: Any = Counting()
    for expected, result in enumerate(work_on(chunks(), worker, 2)):
        assert result.file == expected
        assert len(taken) <= expected + 1 + 2 * CHUNKS_PER_WORKER
    assert len(taken) == 30


def test_a_process_that_dies_is_told() -> None:
    worker: Any = Dying()
    with pytest.raises(DataError, match=r"a process that prepares data died.*num_workers=0"):
        list(work_on([Chunk(0, 0, [])], worker, 1))
