"""The work on a chunk of rows, in this process or in others: the same result either way."""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

from infrastructure.core.errors import DataError
from infrastructure.training.data.examples import TokenizedExample
from infrastructure.training.data.fingerprints import content_number
from infrastructure.training.data.rows import BadRow, Conversation, Row
from infrastructure.training.data.shapes import Shape
from infrastructure.training.data.tokenization import ConversationEncoder

CHUNK_ROWS = 256
CHUNKS_PER_WORKER = 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one file, in its order.

    Attributes:
        file: number of the file.
        shape: which of the worker's shapes they have.
    """

    file: int
    shape: int
    rows: list[Row | BadRow]


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A usable row.

    Attributes:
        content: equal for rows that say the same.
        holds_special_text: the text spells a special token, which is read as that token.
    """

    conversation: Conversation
    example: TokenizedExample
    content: int
    offset: int
    is_truncated: bool
    holds_special_text: bool


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """What became of each row of a chunk, in order."""

    file: int
    shape: int
    rows: list[PreparedRow | BadRow]


class RowWorker:
    """Turns rows into examples; can be sent to another process."""

    def __init__(self, encoder: ConversationEncoder, shapes: list[Shape]) -> None:
        self.encoder = encoder
        self.shapes = shapes
        texts = [text for text in encoder.special_tokens.values() if text]
        self._special = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def __call__(self, chunk: Chunk) -> PreparedChunk:
        shape = self.shapes[chunk.shape]
        converted = [row if isinstance(row, BadRow) else shape.convert(row) for row in chunk.rows]
        good = [item for item in converted if isinstance(item, Conversation)]
        encoded = iter(zip(good, self.encoder.encode(good), strict=True))
        rows: list[PreparedRow | BadRow] = []
        for row, item in zip(chunk.rows, converted, strict=True):
            if isinstance(item, BadRow):
                rows.append(item)
                continue
            conversation, result = next(encoded)
            if isinstance(result, BadRow):
                rows.append(result)
                continue
            rows.append(
                PreparedRow(
                    conversation,
                    result.example,
                    content_number(conversation.pairs()),
                    row.offset,
                    result.is_truncated,
                    any(self._special.search(turn.text) for turn in conversation.turns),
                )
            )
        return PreparedChunk(chunk.file, chunk.shape, rows)


_worker: RowWorker | None = None


def _start_process(worker: RowWorker) -> None:
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _worker = worker


def _work_in_process(chunk: Chunk) -> PreparedChunk:
    assert _worker is not None
    return _worker(chunk)


def work_on(
    chunks: Iterable[Chunk], worker: RowWorker, num_processes: int
) -> Iterator[PreparedChunk]:
    """Prepared chunks in the given order; a bounded number is under way at a time.

    Raises:
        DataError: a worker process died.
    """
    if num_processes == 0:
        yield from map(worker, chunks)
        return
    context = get_context("spawn")  # forking a process that has threads may hang it
    with ProcessPoolExecutor(
        num_processes, context, initializer=_start_process, initargs=(worker,)
    ) as pool:
        under_way: deque[Future[PreparedChunk]] = deque()
        try:
            for chunk in chunks:
                under_way.append(pool.submit(_work_in_process, chunk))
                if len(under_way) >= CHUNKS_PER_WORKER * num_processes:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                "a process that prepares data died (out of memory, or a script that starts"
                " training without `if __name__ == '__main__':`): set data.num_workers=0"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
