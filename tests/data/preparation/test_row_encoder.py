"""Processes give results in order, few chunks at a time, and a death costs one row at most."""

import os
import pickle
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from infrastructure.core.errors import DataError
from infrastructure.core.helper_process import worker_pool
from infrastructure.core.process_memory import can_limit_hard, resident_bytes
from infrastructure.data.encoding.row_schema import RowSchema
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.preparation import row_encoder as row_worker
from infrastructure.data.preparation.row_encoder import (
    CHUNKS_PER_WORKER,
    Chunk,
    PreparedChunk,
    PreparedRow,
    RowWorker,
    work_on,
)
from infrastructure.data.readers.rows import BadRow, Conversation, Row
from infrastructure.data.store.examples import Picture
from infrastructure.models.tokenizer import train_tokenizer

pytestmark = pytest.mark.usefixtures("spawned_by_fork")


class Counting:
    """Stands for the worker: gives the chunk's number back. Light enough to start quickly."""

    max_bytes = None
    needs_torch = False

    def __call__(self, chunk: Chunk) -> PreparedChunk:
        sum(range(100_000 * (chunk.file % 3)))  # some take longer
        return PreparedChunk(chunk.file, 0, [])


class Deadly:
    """Rows are marked: "exit" and "kill" end the process, "once" does so the first time only."""

    max_bytes = None
    needs_torch = False

    def __init__(self, home: int, folder: Path) -> None:
        self.home, self.folder = home, folder

    def __call__(self, chunk: Chunk) -> PreparedChunk:
        for row in chunk.rows:
            assert isinstance(row, Row)
            assert os.getpid() != self.home or row.values["mark"] == ""
            if row.values["mark"] == "exit":
                os._exit(1)
            if row.values["mark"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if row.values["mark"] == "once" and not (self.folder / str(row.line)).exists():
                (self.folder / str(row.line)).touch()
                os._exit(1)
        return PreparedChunk(chunk.file, chunk.shape, chunk.rows)  # type: ignore[arg-type]


class Homebound:
    """Lives in no process but this one, as in a script without its main guard."""

    needs_torch = False

    def __init__(self, home: int) -> None:
        self.home = home

    def __call__(self, chunk: Chunk) -> PreparedChunk:
        if os.getpid() != self.home:
            os._exit(1)
        return PreparedChunk(chunk.file, chunk.shape, chunk.rows)  # type: ignore[arg-type]


def chunks_of(marks: list[str], size: int = 4) -> list[Chunk]:
    rows: list[Row | BadRow] = [
        Row({"mark": mark}, "rows.jsonl", line) for line, mark in enumerate(marks, start=1)
    ]
    return [Chunk(0, 0, rows[start : start + size]) for start in range(0, len(rows), size)]


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


def test_no_more_processes_than_there_are_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def pool(num_processes: int, *others: Any, **more: Any) -> Any:
        sizes.append(num_processes)
        return worker_pool(num_processes, *others, **more)

    monkeypatch.setattr(row_worker, "worker_pool", pool)
    worker: Any = Counting()
    for num_chunks in (0, 1, 5):
        chunks = (Chunk(number, 0, []) for number in range(num_chunks))
        prepared = [chunk.file for chunk in work_on(chunks, worker, 2)]
        assert prepared == list(range(num_chunks))
    assert sizes == [1, 2]


def test_a_row_that_kills_its_process_is_set_aside_with_its_place(tmp_path: Path) -> None:
    """Two rows in different chunks; all others are there, once and in order."""
    marks = ["", "", "exit", "", "", "", "", "", "", "kill", "", ""]
    worker: Any = Deadly(os.getpid(), tmp_path)
    prepared = list(work_on(chunks_of(marks), worker, 2))
    assert [len(chunk.rows) for chunk in prepared] == [4, 4, 4]
    rows: list[Any] = [row for chunk in prepared for row in chunk.rows]
    assert [row.line for row in rows] == list(range(1, 13))
    bad = [row for row in rows if isinstance(row, BadRow)]
    assert [str(row) for row in bad] == [
        f"rows.jsonl:{line}: kills its process (data.deadly_row(count=2))" for line in (3, 10)
    ]


class Noting(Deadly):
    """Finds something that nobody reads in each row, too."""

    def __call__(self, chunk: Chunk) -> PreparedChunk:
        whole = super().__call__(chunk)
        whole.unused_columns.update(f"column {len(row.source)}" for row in chunk.rows)
        whole.unused_fields.update(f"field {row.line % 2}" for row in chunk.rows)
        return whole


def test_work_done_again_row_by_row_is_counted_as_if_nothing_had_died(tmp_path: Path) -> None:
    worker: Any = Noting(os.getpid(), tmp_path)
    chunks = [
        Chunk(7, 1, [Row({"mark": mark}, "rows.jsonl", line, 100 * line) for line, mark in rows])
        for rows in ([(1, ""), (2, "once"), (3, "")], [(4, "exit"), (5, "")])
    ]
    prepared = list(work_on(chunks, worker, 1))
    assert [(chunk.file, chunk.shape, len(chunk.rows)) for chunk in prepared] == [
        (7, 1, 3),
        (7, 1, 2),
    ]
    assert [row.offset for chunk in prepared for row in chunk.rows] == [100, 200, 300, 400, 500]
    assert prepared[0].unused_columns == {"column 10": 3}
    assert prepared[0].unused_fields == {"field 0": 1, "field 1": 2}
    assert prepared[1].unused_fields == {"field 1": 1}


def test_a_row_that_killed_once_is_used(tmp_path: Path) -> None:
    worker: Any = Deadly(os.getpid(), tmp_path)
    prepared = list(work_on(chunks_of(["", "once", "", ""]), worker, 1))
    assert not any(isinstance(row, BadRow) for chunk in prepared for row in chunk.rows)


def test_where_no_process_lives_this_one_does_the_work(caplog: pytest.LogCaptureFixture) -> None:
    worker: Any = Homebound(os.getpid())
    chunks = chunks_of([""] * 8)
    prepared = list(work_on(chunks, worker, 1))
    assert [chunk.rows for chunk in prepared] == [chunk.rows for chunk in chunks]
    assert "data.worker_died_without_bad_row" in caplog.text


def test_too_many_rows_that_kill_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_worker, "MAX_DEADLY_ROWS", 1)
    worker: Any = Deadly(os.getpid(), tmp_path)
    with pytest.raises(DataError, match=r"data\.too_many_deadly_rows"):
        list(work_on(chunks_of(["", "exit", "exit", ""]), worker, 1))


class Hungry:
    """Holds as many MB as a row is marked with, under a limit."""

    needs_torch = False

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes

    def __call__(self, chunk: Chunk) -> PreparedChunk:
        for row in chunk.rows:
            assert isinstance(row, Row)
            bytearray(int(row.values["mark"]) * 10**6)
        return PreparedChunk(chunk.file, 0, list(chunk.rows))  # type: ignore[arg-type]


@pytest.mark.skipif(not can_limit_hard(), reason="only Linux refuses memory to one process")
def test_a_row_that_needs_more_than_a_worker_may_take_is_set_aside() -> None:
    worker: Any = Hungry(max_bytes=resident_bytes() + 400 * 10**6)
    prepared = list(work_on(chunks_of(["1", "1", "500", "1"]), worker, 1))
    [rows] = [chunk.rows for chunk in prepared]
    assert [isinstance(row, BadRow) for row in rows] == [False, False, True, False]
    unlimited: Any = Hungry(max_bytes=10**13)
    [chunk] = work_on(chunks_of(["500"]), unlimited, 1)
    assert not isinstance(chunk.rows[0], BadRow)


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
    prepared = RowWorker(encoder, [schema])(Chunk(0, 0, rows)).rows
    numbers = [one.content for one in prepared if isinstance(one, PreparedRow)]
    assert len(numbers) == len(shown)
    assert [numbers.index(number) for number in numbers] == [0, 1, 0, 3, 4, 5]
