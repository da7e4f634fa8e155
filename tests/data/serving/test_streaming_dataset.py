"""Streamed rows are all rows, in an order that can begin anywhere, through a bounded buffer."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from torch.utils.data import DataLoader

from infrastructure.core.errors import DataError
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.serving.streaming_dataset import StreamingDataset
from tests.data.builders import write_jsonl

ROWS = [{"n": str(n), "text": "word " * (n % 7)} for n in range(100)]


def write_csv(path: Path) -> None:
    path.write_text("n,text\n" + "".join(f'{r["n"]},"{r["text"]}"\n' for r in ROWS))


def write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=13)


WRITERS: dict[str, Any] = {
    "a.jsonl": lambda path: write_jsonl(path, ROWS),
    "a.json": lambda path: path.write_text(json.dumps(ROWS)),
    "a.csv": write_csv,
    "a.parquet": write_parquet,
    "a.jsonl.gz": lambda path: path.write_bytes(
        gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode())
    ),
}


def numbers(items: Any) -> list[int]:
    return [int(item["n"]) for item in items]


@pytest.mark.parametrize("name", WRITERS)
def test_every_row_comes_once_and_any_start_gives_the_same_rest(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    dataset = StreamingDataset(tmp_path / name, buffer_size=8, seed=3)
    assert len(dataset) == len(ROWS)
    whole = numbers(dataset.iterate(epoch=1))
    assert sorted(whole) == list(range(100))
    assert [sorted(whole[i : i + 8]) for i in range(0, 100, 8)] == [
        list(range(i, min(i + 8, 100))) for i in range(0, 100, 8)
    ]
    assert whole != list(range(100))
    for start in (0, 1, 7, 8, 50, 99, 100):
        assert numbers(dataset.iterate(epoch=1, start=start)) == whole[start:]


def test_order_depends_on_seed_and_epoch(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    orders = [
        numbers(StreamingDataset(path, 50, seed=seed).iterate(epoch))
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3


def test_the_order_is_the_same_in_every_version(tmp_path: Path) -> None:
    """A checkpoint of an older version must find its rows: these numbers never change."""
    path = write_jsonl(tmp_path / "a.jsonl", ROWS[:13])
    dataset = StreamingDataset(path, buffer_size=5, seed=3)
    assert numbers(dataset.iterate(1)) == EXPECTED_ORDER
    assert numbers(StreamingDataset(path, buffer_size=5).iterate(0)) == EXPECTED_FIRST


EXPECTED_ORDER = [4, 3, 1, 2, 0, 9, 8, 7, 6, 5, 10, 11, 12]
EXPECTED_FIRST = [3, 2, 1, 0, 4, 5, 8, 7, 6, 9, 12, 11, 10]


def test_the_buffer_is_bounded_in_rows_and_bytes(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"n": str(n), "text": "x" * 1000} for n in range(30)])
    dataset = StreamingDataset(path, buffer_size=1000, memory_limit=8000)
    held = {dataset.buffered_rows for _ in dataset.iterate(0)}
    assert max(held) == 5
    assert max(dataset.index.column("num_bytes")) <= 8000
    assert sorted(numbers(dataset.iterate(0))) == list(range(30))
    alone = StreamingDataset(path, memory_limit=100)  # no row fits: each is buffered alone
    assert {alone.buffered_rows for _ in alone.iterate(0)} == {1}


def test_only_the_window_that_is_needed_is_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    converted: list[int] = []

    def convert(row: Row) -> dict[str, Any]:
        converted.append(int(row.values["n"]))
        return row.values

    dataset = StreamingDataset(path, buffer_size=10, convert=convert)
    next(dataset.iterate(0, start=45))
    assert converted == list(range(40, 50))


def test_bad_rows_are_passed_over(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in ROWS]
    lines[5:5] = ["{broken", "[1]"]
    lines.append("{broken")
    path = write_jsonl(tmp_path / "a.jsonl", lines)
    dataset = StreamingDataset(path, buffer_size=4)
    assert sorted(numbers(dataset.iterate(0))) == list(range(100))
    whole = numbers(dataset.iterate(0))
    assert numbers(dataset.iterate(0, start=37)) == whole[37:]


def test_folders_are_streamed_file_by_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ROWS[:30])
    write_jsonl(tmp_path / "b.jsonl", ROWS[30:])
    whole = numbers(StreamingDataset(tmp_path, buffer_size=50).iterate(0))
    assert sorted(whole[:30]) == list(range(30))
    assert sorted(whole[30:]) == list(range(30, 100))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_gets_each_row_once(tmp_path: Path, num_workers: int) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    dataset = StreamingDataset(path, buffer_size=10)
    dataset.set_epoch(2)
    len(dataset)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
    found = numbers(loader)
    assert sorted(found) == list(range(100))
    whole = numbers(dataset.iterate(2))
    if num_workers == 0:
        assert found == whole
    else:  # each has every other window
        windows = [whole[i : i + 10] for i in range(0, 100, 10)]
        of_first = [n for window in windows[::2] for n in window]
        assert [n for n in found if n in of_first] == of_first


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    dataset = StreamingDataset(path, buffer_size=10)
    items = dataset.iterate(0)
    next(items)
    path.write_text(path.read_text().replace("word", "work"))
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match=r"data\.file_changed_during_training"):
        list(items)


@pytest.mark.parametrize("limits", [{"buffer_size": 1}, {"memory_limit": 1}])
def test_a_buffer_of_one_row_keeps_the_order_of_the_file(
    tmp_path: Path, limits: dict[str, Any]
) -> None:
    dataset = StreamingDataset(write_jsonl(tmp_path / "a.jsonl", ROWS), seed=3, **limits)
    assert numbers(dataset.iterate(epoch=1)) == list(range(100))
    assert numbers(dataset.iterate(epoch=1, start=41)) == list(range(41, 100))
    assert {dataset.buffered_rows for _ in dataset.iterate(0)} == {1}


@pytest.mark.parametrize("is_cut", [False, True])
def test_rows_that_are_not_what_they_were_are_never_passed_over(
    tmp_path: Path, is_cut: bool
) -> None:
    """Of the same size and time as before, as a disk that rots leaves them."""
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    dataset, stamp, content = StreamingDataset(path, buffer_size=10), path.stat(), path.read_bytes()
    len(dataset)
    half = content.index(b"\n", len(content) // 2)
    damaged = content[:half] + b"\n" * (len(content) - half)
    path.write_bytes(damaged if is_cut else content.replace(b'{"n": "47"', b'["n", "47"'))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(DataError):
        list(dataset.iterate(0))


def test_format_and_encoding_are_those_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes("n;text\n1;größer\n2;äh\n".encode("cp1252"))
    dataset = StreamingDataset(tmp_path / "rows", data_format="csv", encoding="cp1252")
    assert sorted(row["text"] for row in dataset.iterate(0)) == ["größer", "äh"]


def test_wrong_limits_are_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    for limit in (0, -1):
        with pytest.raises(ValueError, match=r"data\.invalid_stream_limits"):
            StreamingDataset(path, buffer_size=limit)
        with pytest.raises(ValueError, match=r"data\.invalid_stream_limits"):
            StreamingDataset(path, memory_limit=limit)


def test_rows_that_became_others_are_named(tmp_path: Path) -> None:
    """By where they stand; a converter may refuse a row, too."""
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    refused = StreamingDataset(
        path, convert=lambda row: BadRow(row.source, row.line, "no use") if row.line == 7 else row
    )
    with pytest.raises(DataError, match=r"row_no_longer_readable\(row=a\.jsonl:7: no use\)"):
        list(refused.iterate(0))
    dataset, stamp = StreamingDataset(path), path.stat()
    len(dataset)
    path.write_bytes(path.read_bytes().rstrip()[:-30].rpartition(b"\n")[0] + b"\n")
    dataset._stamps = [file.stamp() for file in dataset.files]
    with pytest.raises(DataError, match=r"data\.file_became_shorter\(file=.*a\.jsonl\)"):
        list(dataset.iterate(0))
    assert path.stat() != stamp


def test_an_index_is_built_once_and_may_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    built = StreamingDataset(path, 9, seed=2)
    index = built.index
    monkeypatch.setattr(StreamingDataset, "build_index", lambda self: pytest.fail("read again"))
    assert built.index is index
    given = StreamingDataset(path, 9, seed=2, index=index)
    assert numbers(given.iterate(1)) == numbers(built.iterate(1))
    built.set_epoch(1)
    assert numbers(built) == numbers(given.iterate(1)) != numbers(given)


def test_without_a_limit_a_thousand_rows_are_buffered(tmp_path: Path) -> None:
    rows = [{"n": str(n), "text": "x" * 9_999} for n in range(1001)]
    dataset = StreamingDataset(write_jsonl(tmp_path / "a.jsonl", rows))
    assert dataset.index.column("num_items").tolist() == [1000, 1]
