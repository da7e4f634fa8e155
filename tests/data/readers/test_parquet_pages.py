"""What a Parquet file may take in memory is known from its page headers, and never less."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infrastructure.data.readers import parquet_pages
from infrastructure.data.readers.parquet_pages import (
    LEVEL_BYTES,
    Column,
    _column,
    rows_at_once,
    texts_in_dictionaries,
)

NUM_ROWS = 300
COLUMNS: dict[str, list[Any]] = {
    "numbers": list(range(NUM_ROWS)),
    "texts": [f"{n:>{5 + 7 * (n % 40)}}" for n in range(NUM_ROWS)],
    "lists": [list(range(n % 9)) for n in range(NUM_ROWS)],
    "words": [[f"word {n} {k}" for k in range(n % 5)] for n in range(NUM_ROWS)],
}


def written(folder: Path, **options: Any) -> Path:
    path = folder / "rows.parquet"
    options = {"use_dictionary": False, "data_page_size": 256, "write_batch_size": 8, **options}
    pq.write_table(pa.table(COLUMNS), path, **options)
    return path


def columns(path: Path, in_dictionaries: bool = False) -> dict[str, Column]:
    metadata = pq.read_metadata(path)
    texts = texts_in_dictionaries(metadata) if in_dictionaries else []
    with path.open("rb") as file:
        made = [
            _column(file, metadata, 0, index, texts, path.name)
            for index in range(metadata.num_columns)
        ]
    return {column.path.partition(".")[0]: column for column in made}


def rows(path: Path) -> int:
    metadata = pq.read_metadata(path)
    with path.open("rb") as file:
        return rows_at_once(file, metadata, 0, texts_in_dictionaries(metadata), path.name)


@pytest.mark.parametrize("use_dictionary", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_value_is_counted_and_no_size_is_less_than_what_is_decoded(
    tmp_path: Path, use_dictionary: bool, version: str
) -> None:
    path = written(tmp_path, use_dictionary=use_dictionary, data_page_version=version)
    table = pq.read_table(path)
    for name, column in columns(path).items():
        whole = table[name].combine_chunks()
        if column.is_in_list:
            num_values = sum(max(1, len(values)) for values in COLUMNS[name])
        else:
            num_values = NUM_ROWS
        assert len(column.data_pages) > 1
        assert sum(page.num_values for page in column.data_pages) == num_values
        assert (column.dictionary_bytes > 0) is use_dictionary
        assert column.whole_bytes() >= whole.nbytes, name
        assert column.is_in_list is (name in ("lists", "words"))
        if column.is_in_list:
            continue
        for num_rows in (1, 7, 64):
            parts = (whole.slice(n, num_rows).nbytes for n in range(NUM_ROWS - num_rows + 1))
            assert column.batch_bytes(num_rows) >= max(parts), (name, num_rows)


def test_the_size_of_a_list_of_numbers_is_that_of_its_values_and_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_values = sum(max(1, len(values)) for values in COLUMNS["lists"])
    for use_dictionary in (False, True):
        path = written(tmp_path, use_dictionary=use_dictionary)
        column = columns(path)["lists"]
        assert column.whole_bytes() == column.dictionary_bytes + num_values * (LEVEL_BYTES + 8)
    monkeypatch.setattr(parquet_pages, "HONEST_RATIO", 0)
    pq.write_table(pa.table({"lists": COLUMNS["lists"]}), path)
    largest = columns(path)["lists"].whole_bytes()
    for limit, is_refused in ((largest, False), (largest - 1, True)):
        monkeypatch.setattr(parquet_pages, "MAX_ROW_GROUP_BYTES", limit)
        if is_refused:
            with pytest.raises(ValueError, match=r"data\.parquet_too_large\(.*parquet_column"):
                rows(path)
        else:
            assert rows(path) > 1


def test_as_many_rows_are_decoded_at_once_as_may_be_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    flat = [column for column in columns(path).values() if not column.is_in_list]
    table = pq.read_table(path, columns=["numbers", "texts"]).combine_chunks()
    assert rows(path) == parquet_pages.MAX_ROWS
    for wanted in (128, 32, 4):
        limit = sum(column.batch_bytes(wanted) for column in flat)
        for most, expected in ((limit, wanted), (limit - 1, wanted // 2)):
            monkeypatch.setattr(parquet_pages, "MAX_BATCH_BYTES", most)
            monkeypatch.setattr(parquet_pages, "LEAST_ROWS_HELD", 1)
            assert rows(path) == expected
            held = max(table.slice(n, expected).nbytes for n in range(NUM_ROWS - expected))
            assert held <= most


def test_a_text_that_a_dictionary_holds_once_counts_in_each_row_that_copies_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"texts": ["a long text " * 40] * NUM_ROWS}), path)
    copied, kept = columns(path)["texts"], columns(path, in_dictionaries=True)["texts"]
    assert copied.repeats
    assert not kept.repeats
    assert copied.batch_bytes(100) >= pq.read_table(path).slice(0, 100).nbytes
    assert kept.batch_bytes(100) < copied.batch_bytes(2)
