"""Processes give results in order, few chunks at a time, and a death costs no row."""

import os
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from infrastructure.core.helper_process import worker_pool
from infrastructure.core.process_memory import can_limit_hard, resident_bytes
from infrastructure.data.encoding.row_schema import RowSchema
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.preparation import row_encoder as row_worker
from infrastructure.data.preparation.row_encoder import (
    CHUNKS_PER_WORKER,
    PreparedChunk,
    PreparedRow,
    RowChunk,
    RowWorker,
    work_on,
)
from infrastructure.data.readers.rows import BadRow, Conversation, Row
from infrastructure.data.store.examples import Picture
from infrastructure.models.tokenizer import train_tokenizer
from tests.data.builders import CHATML, byte_level_tokenizer

pytestmark = pytest.mark.usefixtures("spawned_by_fork")


class Counting:
    """Stands for the worker: gives the chunk's number back. Light enough to start quickly."""

    max_bytes = None
    needs_torch = False

    def __call__(self, chunk: RowChunk) -> PreparedChunk:
        sum(range(100_000 * (chunk.file % 3)))  # some take longer
        return PreparedChunk(chunk.file, 0, [])


class Homebound:
    """Lives in no process but this one, as in a script without its main guard."""

    needs_torch = False

    def __init__(self, home: int) -> None:
        self.home = home

    def __call__(self, chunk: RowChunk) -> PreparedChunk:
        if os.getpid() != self.home:
            os._exit(1)
        return PreparedChunk(chunk.file, chunk.shape, chunk.rows)  # type: ignore[arg-type]


def chunks_of(marks: list[str], size: int = 4) -> list[RowChunk]:
    rows: list[Row | BadRow] = [
        Row({"mark": mark}, "rows.jsonl", line) for line, mark in enumerate(marks, start=1)
    ]
    return [RowChunk(0, 0, rows[start : start + size]) for start in range(0, len(rows), size)]


def test_results_come_in_order_and_few_are_under_way() -> None:
    taken: list[int] = []

    def chunks() -> Iterator[RowChunk]:
        for number in range(30):
            taken.append(number)
            yield RowChunk(number, 0, [])

    worker: Any = Counting()
    for expected, result in enumerate(work_on(chunks(), worker, 2)):
        assert result.file == expected
        assert len(taken) <= expected + 1 + 2 * CHUNKS_PER_WORKER
    assert len(taken) == 30


def test_no_more_processes_than_there_are_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    imports: list[bool] = []

    def pool(num_processes: int, *others: Any, imports_main: bool) -> Any:
        sizes.append(num_processes)
        imports.append(imports_main)
        return worker_pool(num_processes, *others)

    monkeypatch.setattr(row_worker, "worker_pool", pool)
    worker: Any = Counting()
    for num_chunks in (0, 1, 5):
        chunks = (RowChunk(number, 0, []) for number in range(num_chunks))
        prepared = [chunk.file for chunk in work_on(chunks, worker, 2)]
        assert prepared == list(range(num_chunks))
    assert sizes == [1, 2]
    worker.tokenizer = "__main__"  # stands for one that the user's script defines
    assert len([*work_on([RowChunk(0, 0, [])], worker, 1)]) == 1
    assert imports == [False, False, True]


class Hungry:
    """Holds as many MB as a row is marked with, under a limit."""

    needs_torch = False

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes

    def __call__(self, chunk: RowChunk) -> PreparedChunk:
        for row in chunk.rows:
            assert isinstance(row, Row)
            bytearray(int(row.values["mark"]) * 10**6)
        return PreparedChunk(os.getpid(), 0, list(chunk.rows))  # type: ignore[arg-type]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_where_a_process_dies_fewer_and_then_this_one_do_the_work(
    num_processes: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker: Any = Homebound(os.getpid())
    chunks = chunks_of([""] * 12)
    prepared = list(work_on(chunks, worker, num_processes))
    assert [chunk.rows for chunk in prepared] == [chunk.rows for chunk in chunks]
    left = re.findall(r"data\.worker_died\(num_workers=(\d)\)", caplog.text)
    assert left == ["1", "0"][-num_processes:]


@pytest.mark.skipif(not can_limit_hard(), reason="only Linux refuses memory to one process")
def test_a_row_that_needs_more_than_a_worker_may_take_is_prepared_here() -> None:
    worker: Any = Hungry(max_bytes=resident_bytes() + 400 * 10**6)
    marks = ["1", "1", "500", "1"]
    for limit, is_here in ((worker.max_bytes, True), (10**13, False)):
        worker.max_bytes = limit
        prepared = list(work_on(chunks_of(marks), worker, 1))
        assert [chunk.rows for chunk in prepared] == [chunk.rows for chunk in chunks_of(marks)]
        assert [chunk.file == os.getpid() for chunk in prepared] == [is_here]


def test_only_what_may_need_torch_has_it_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for needs_torch in (True, False):
        with monkeypatch.context() as own:
            for variable in ("TOKENIZERS_PARALLELISM", "TRANSFORMERS_NO_ADVISORY_WARNINGS"):
                own.setenv(variable, "")
            own.setattr(row_worker, "_worker", None)
            own.setitem(sys.modules, "torch", None)  # which comes back, whatever was there
            own.delitem(sys.modules, "torch")
            row_worker._start_process(pickle.dumps(Counting()), needs_torch)
            assert ("torch" in sys.modules) is not needs_torch
            assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    tokenizer = train_tokenizer(["a few words"], 300)
    encoder = ConversationEncoder(tokenizer, max_length=10)
    worker = RowWorker(encoder, [])
    assert not worker.needs_torch
    assert "template" in vars(pickle.loads(pickle.dumps(worker)).encoder)  # maybe by TRL
    encoder.pictures = cast(Any, "a processor")
    assert worker.needs_torch
    encoder.pictures = None

    class OwnTokenizer(type(tokenizer)):  # type: ignore[misc] # such as one with code of its own
        pass

    encoder.tokenizer = OwnTokenizer(tokenizer_object=tokenizer.backend_tokenizer)
    assert worker.needs_torch


def test_rows_about_different_pictures_are_different_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their texts are the same; those about the same pictures are the same row."""
    shown = [["a"], ["b"], ["a"], ["a", "b"], ["b", "a"], []]
    rows: list[Row | BadRow] = [
        Row({"prompt": "What is it?", "completion": "a cat"}, "rows.jsonl", n)
        for n in range(len(shown))
    ]
    tokenizer = train_tokenizer(["What is it? a cat"], 300)
    encoder = ConversationEncoder(tokenizer, max_length=64)
    encode = encoder.encode

    def seeing(conversations: Sequence[Conversation], folder: Path) -> Iterator[Any]:
        for result, names in zip(encode(conversations, folder), shown, strict=True):
            pictures = tuple(Picture(sha256=name, num_bytes=1) for name in names)
            yield replace(
                cast(Any, result), example=replace(cast(Any, result).example, pictures=pictures)
            )

    monkeypatch.setattr(encoder, "encode", seeing)
    schema = RowSchema("qa", {"prompt": "prompt", "answer": "completion"}, "")
    prepared = RowWorker(encoder, [schema])(RowChunk(0, 0, rows)).rows
    numbers = [one.content for one in prepared if isinstance(one, PreparedRow)]
    assert len(numbers) == len(shown)
    assert [numbers.index(number) for number in numbers] == [0, 1, 0, 3, 4, 5]


def prepared_by(encoder: ConversationEncoder, shape: RowSchema, *values: Any) -> PreparedChunk:
    """Prepare rows of these values; a text stands for the reason of an unreadable row."""
    rows: list[Row | BadRow] = [
        BadRow("a", line, one) if isinstance(one, str) else Row(one, "a", line, 10 * line)
        for line, one in enumerate(values, 1)
    ]
    return RowWorker(encoder, [RowSchema("text", {"text": "t"}, ""), shape])(RowChunk(4, 1, rows))


def test_pictures_are_looked_up_in_the_folder_of_their_own_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = ConversationEncoder(byte_level_tokenizer(), max_length=12)
    folders: list[Path] = []
    monkeypatch.setattr(encoder, "encode", lambda rows, folder: folders.append(folder) or [])
    worker = RowWorker(encoder, [PAIR], folders=[Path("first"), Path("second")])
    for file in (1, 0):
        worker(RowChunk(file, 0, []))
    assert folders == [Path("second"), Path("first")]


PAIR = RowSchema("qa", {"prompt": "q", "answer": "a"}, "", task_column="kind")


def test_each_row_has_its_own_facts_in_the_order_of_the_chunk() -> None:
    encoder = ConversationEncoder(byte_level_tokenizer(), max_length=12, over_length="keep_start")
    chunk = prepared_by(
        encoder,
        PAIR,
        {"q": "Q", "a": "A", "kind": "k"},
        "unreadable",
        {"q": "Q", "a": ""},
        {"q": "Q", "a": "word " * 9},
        {"q": "long " * 99, "a": "A"},
        {"q": "Q", "a": "</s>", "kind": "other"},
        {"q": "Q", "a": "A"},
    )
    assert (chunk.file, chunk.shape) == (4, 1)
    bad = {n: row.reason for n, row in enumerate(chunk.rows) if isinstance(row, BadRow)}
    assert bad == {1: "unreadable", 2: "empty", 4: "over-long"}
    good = {n: row for n, row in enumerate(chunk.rows) if isinstance(row, PreparedRow)}
    assert {n: row.offset for n, row in good.items()} == {0: 10, 3: 40, 5: 60, 6: 70}
    assert [n for n, row in good.items() if row.encoded.is_truncated] == [3]
    assert [n for n, row in good.items() if row.holds_special_text] == [5]
    assert [row.encoded.example.task for row in good.values()] == ["k", "", "other", ""]
    assert len({row.content for row in good.values()}) == 3
    assert good[0].content == good[6].content  # whatever its task
    encoder.special_tokens = {}  # of a tokenizer that has none
    [row] = prepared_by(encoder, PAIR, {"q": "Q", "a": "</s>"}).rows
    assert isinstance(row, PreparedRow)
    assert not row.holds_special_text
    end = encoder.tokenizer.eos_token_id
    assert [row.encoded.end_token == end for row in good.values()] == [True, False, True, True]


def test_columns_and_fields_without_a_use_are_counted() -> None:
    columns = {"chat": "m", "options": "o", "tools": "tools"}
    shape = RowSchema("messages", columns, "")
    answer = {"role": "assistant", "content": "A", "mood": "x", "weight": 1, "reasoning": "hm"}
    messages = [{"role": "user", "content": "Q", "name": "Anna", "mood": None}, answer]
    rows = [
        {"m": messages, "o": {"calm": 1, "loud": None}, "extra": 1, "empty": None},
        {"m": [*messages, answer], "extra": "", "tools": [{"name": "f"}]},
        {"m": [], "extra": 1},
    ]
    for template, unread in (
        (None, {"mood": 3, "name": 2, "calm": 1}),
        (CHATML, {"mood": 3, "name": 2, "calm": 1}),
        (CHATML + "{# mood #}{{ calm }}{{ m.name }}", {"mood": 3}),
    ):
        encoder = ConversationEncoder(byte_level_tokenizer(template), max_length=99)
        chunk = prepared_by(encoder, shape, *rows)
        assert chunk.unused_columns == {"extra": 3}
        assert chunk.unused_fields == unread
