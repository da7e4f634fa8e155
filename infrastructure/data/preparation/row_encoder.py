"""Conversion of rows to examples, in this process or in several; both give the same result."""

import json
import logging
import os
import pickle
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from infrastructure.core.helper_process import worker_pool
from infrastructure.core.importing import do_without_torch
from infrastructure.core.messages import phrase
from infrastructure.core.process_memory import HardLimit, can_limit_hard, resident_bytes
from infrastructure.data.encoding.row_accounting import REASONING_FIELDS
from infrastructure.data.encoding.row_schema import RowSchema
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import BadRow, Conversation, Row
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.data.store.fingerprints import content_number

CHUNK_ROWS = 256
CHUNKS_PER_WORKER = 2
ACCOUNTED = frozenset({"content", "tool_calls", *REASONING_FIELDS})  # their texts are accounted for

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Consecutive rows of one file.

    Attributes:
        file: index of the file.
        shape: index of the row shape in the worker's list of shapes.
    """

    file: int
    shape: int
    rows: list[Row | BadRow]


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A usable row with its tokenized example.

    Attributes:
        content: a number that is equal for rows with the same content.
        holds_special_text: True if the text contains that of a special token, and is tokenized as
            that token.
    """

    conversation: Conversation
    encoded: Encoded
    content: int
    offset: int
    holds_special_text: bool


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """The results of converting a chunk, one for each row, in order.

    Attributes:
        unused_columns, unused_fields: how often each column and each message field occurs that
            nothing uses.
    """

    file: int
    shape: int
    rows: list[PreparedRow | BadRow]
    unused_columns: Counter[str] = field(default_factory=Counter)
    unused_fields: Counter[str] = field(default_factory=Counter)


class RowWorker:
    """A converter of rows to examples, which can be pickled for another process.

    Args:
        max_bytes: private memory that the other process may use; a row that needs more kills the
            process.
        folders: the folders of the files; image paths are relative to them.
    """

    def __init__(
        self,
        encoder: ConversationEncoder,
        shapes: list[RowSchema],
        max_bytes: int | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        self.encoder = encoder
        self.shapes = shapes
        self.max_bytes = max_bytes
        self.folders = folders
        texts = [text for text in encoder.special_tokens.values() if text]
        self._special = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    @property
    def needs_torch(self) -> bool:
        """True if tokenizer or processor may need torch; transformers' fast tokenizers do not."""
        tokenizer = self.encoder.tokenizer
        is_plain = tokenizer.is_fast and type(tokenizer).__module__.startswith("transformers.")
        return not is_plain or self.encoder.pictures is not None

    def __getstate__(self) -> dict[str, object]:
        # TRL may have to find the templates, and needs torch: do it once, not in each process.
        _ = self.encoder.template, self.encoder.tool_template
        return vars(self)

    def __call__(self, chunk: RowChunk) -> PreparedChunk:
        shape = self.shapes[chunk.shape]
        converted = [row if isinstance(row, BadRow) else shape.convert(row) for row in chunk.rows]
        good = [item for item in converted if isinstance(item, Conversation)]
        folder = self.folders[chunk.file] if self.folders else Path()
        encoded = iter(zip(good, self.encoder.encode(good, folder), strict=True))
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
                    replace(conversation, pictures=()) if conversation.pictures else conversation,
                    result,
                    content_number([*conversation.pairs(), *_seen(result.example)]),
                    row.offset,
                    any(self._special.search(turn.text) for turn in conversation.turns),
                )
            )
        columns = self._unused_columns(chunk.rows, shape)
        return PreparedChunk(chunk.file, chunk.shape, rows, columns, self._unused_fields(good))

    def _unused_columns(self, rows: list[Row | BadRow], shape: RowSchema) -> Counter[str]:
        unused: Counter[str] = Counter()
        for row in rows:
            if isinstance(row, Row):
                values = row.values.items()
                unused.update(c for c, v in values if v is not None and c not in shape.used)
        return unused

    def _unused_fields(self, conversations: list[Conversation]) -> Counter[str]:
        unused: Counter[str] = Counter()
        for conversation in conversations:
            given = json.loads(conversation.inputs) if conversation.inputs else {}
            names = [*given.get("chat_template_kwargs", {})]
            for turn in conversation.turns:
                names += json.loads(turn.fields).keys() - ACCOUNTED if turn.fields else ()
            template = self.encoder.template_for(conversation.inputs)
            unused.update(name for name in names if template is None or not template.reads(name))
        return unused


def _seen(example: TokenizedExample) -> list[list[str]]:
    """Return the hashes of an example's images, for comparing the content of examples."""
    shown = [picture.sha256 for picture in example.pictures]
    return [["pictures", *shown]] if shown else []


_worker: RowWorker | None = None


def _start_process(pickled: bytes, needs_torch: bool) -> None:
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    if not needs_torch:
        do_without_torch()
    worker = _worker = pickle.loads(pickled)
    if worker.max_bytes is not None and can_limit_hard():
        HardLimit(worker.max_bytes).tighten(resident_bytes())


def _work_in_process(chunk: RowChunk) -> PreparedChunk:
    assert _worker is not None
    try:
        return _worker(chunk)
    except MemoryError:
        os._exit(1)  # its memory may be full of anything; fewer processes try again


def work_on(
    chunks: Iterable[RowChunk], worker: RowWorker, num_processes: int
) -> Iterator[PreparedChunk]:
    """Yield the prepared chunks in the order of `chunks`; a bounded number is in progress at a
    time.

    When a process dies, the work continues with half as many processes, beginning with the chunks
    that were in progress, and in the end in the current process.
    """
    remaining = iter(chunks)
    while num_processes > 0:
        waiting: deque[RowChunk] = deque()
        try:
            yield from _work_in_pool(waiting, remaining, worker, num_processes)
            return
        except BrokenProcessPool:
            num_processes //= 2
            log.warning(phrase("data.worker_died", num_workers=num_processes))
            remaining = chain(waiting, remaining)
    yield from map(worker, remaining)


def _work_in_pool(
    waiting: deque[RowChunk], chunks: Iterator[RowChunk], worker: RowWorker, num_processes: int
) -> Iterator[PreparedChunk]:
    """Yield prepared chunks from a process pool. `waiting` contains the chunks that are not done
    yet.

    Raises:
        BrokenProcessPool: a process died.
    """
    waiting.extend(islice(chunks, num_processes))  # no more processes than there is work for
    if not waiting:
        return
    with _pool(worker, len(waiting)) as pool:
        under_way: deque[Future[PreparedChunk]] = deque()
        try:
            under_way.extend(pool.submit(_work_in_process, chunk) for chunk in tuple(waiting))
            for chunk in chunks:
                waiting.append(chunk)
                under_way.append(pool.submit(_work_in_process, chunk))
                if len(under_way) >= CHUNKS_PER_WORKER * num_processes:
                    prepared = under_way.popleft().result()
                    waiting.popleft()
                    yield prepared
            while under_way:
                prepared = under_way.popleft().result()
                waiting.popleft()
                yield prepared
        finally:
            pool.shutdown(cancel_futures=True)


def _pool(worker: RowWorker, num_processes: int) -> ProcessPoolExecutor:
    pickled = pickle.dumps(worker)
    arguments = (pickled, worker.needs_torch)
    needs_main = b"__main__" in pickled  # such as a tokenizer class that the script defines
    return worker_pool(num_processes, _start_process, arguments, imports_main=needs_main)
