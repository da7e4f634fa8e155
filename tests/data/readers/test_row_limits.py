"""Rows that are too large are known before they are built, in every layout of a table."""

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from infrastructure.data.readers import row_limits
from infrastructure.data.readers.row_limits import (
    fits_a_row,
    has_too_many_values,
    in_chunks,
    too_large_words,
)
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.store.stream_index import estimated_bytes


def rows(*sizes: int) -> list[Row | BadRow]:
    """Rows with texts of these lengths; 0: a bad row, which holds nothing."""
    return [
        Row({"a": "x" * size}, "a", number) if size else BadRow("a", number, "empty")
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([], []),
        ([1] * 7, [3, 3, 1]),
        ([1] * 6, [3, 3]),
        ([900, 1, 1, 1, 1], [1, 3, 1]),  # what a chunk held does not count in the next
        ([1, 900, 1, 1], [2, 2]),
        ([0] * 4, [3, 1]),
    ],
)
def test_chunks_hold_few_rows_and_few_bytes(
    sizes: list[int], lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows(*sizes)
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", estimated_bytes({"a": "x" * 900}))
    chunks = list(in_chunks(given, 3))
    assert [len(chunk) for chunk in chunks] == lengths
    assert [row for chunk in chunks for row in chunk] == given


@pytest.mark.parametrize(
    ("sizes", "more", "lengths"),
    [
        ([9] * 6, 0, [2, 2, 2]),
        ([9] * 6, 1, [3, 3]),
        ([9, 0, 9, 0, 0, 9, 9], 0, [3, 4]),
        ([9, 0, 9, 9, 9], 1, [4, 1]),
    ],
)
def test_a_chunk_ends_at_the_row_that_fills_it(
    sizes: list[int], more: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_two = 2 * estimated_bytes({"a": "x" * 9})
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", of_two + more)
    assert [len(chunk) for chunk in in_chunks(rows(*sizes), 9)] == lengths


@pytest.mark.parametrize("sign", [",", "[", "{"])
def test_what_may_hold_too_many_values_is_counted(
    sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (row_limits.MAX_ROW_BYTES, row_limits.MAX_ROW_VALUES) == (16 << 20, 1 << 22)
    assert too_large_words() == "data.row_too_large(max_mib=16, max_millions=4)"
    monkeypatch.setattr(row_limits, "MAX_ROW_VALUES", 10)
    signs = ((sign, False), (sign * 10, False), (sign * 11, True), ("x" * 99, False))
    for text, is_too_much in signs:
        assert has_too_many_values(text) is is_too_much
        assert has_too_many_values(text.encode()) is is_too_much
    assert has_too_many_values(",[{" * 4)
    assert too_large_words(3 << 20) == "data.row_too_large(max_mib=3, max_millions=0)"


TEXTS = ["é" * 10, None, "b" * 7]  # 27 bytes
LISTS = [[1, 2], None, [3]]
# what is in a column: (bytes, values) at least, as it is expanded
COLUMNS: dict[str, tuple[Any, int, int]] = {
    "texts": (pa.array(TEXTS), 27, 3),
    "large texts": (pa.array(TEXTS, pa.large_string()), 27, 3),
    "bytes": (pa.array([b"abc", None]), 3, 2),
    "view": (pa.array(TEXTS, pa.string_view()), 27, 3),
    "numbers": (pa.array([1, 2, 3], pa.int64()), 24, 3),
    "small numbers": (pa.array([1, 2, 3], pa.int8()), 24, 3),  # each is an object in Python
    "dates": (pa.array([date(2024, 1, 5)]), 8, 1),
    "words": (pa.array(["a" * 9] * 4 + ["b"]).dictionary_encode(), 50, 5),
    "lists": (pa.array(LISTS), 24, 6),
    "lists of texts": (pa.array([TEXTS, TEXTS]), 54, 8),
    "objects": (pa.array([{"a": "xyz", "b": 1}] * 2), 22, 6),
    "maps": (
        pa.array([[("k", "vw")], [], [("k", "v")]], pa.map_(pa.string(), pa.string())),
        5,
        7,
    ),
    "numbers of a dictionary": (pa.array([1, 2, 1, 1]).dictionary_encode(), 64, 4),
    "nothing": (pa.nulls(2), 16, 2),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_size_of_a_batch_is_that_of_its_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    column, num_bytes, num_values = COLUMNS[name]
    padded = pa.concat_arrays([column] * 3) if name != "view" else column
    parts = [column, padded.slice(len(column), len(column))]  # a slice counts what it shows alone
    for part in parts if name != "view" else parts[:1]:
        batch = pa.record_batch({"a": part, "b": part})
        for most_bytes, most_values, fits in (
            (2 * num_bytes, 2 * num_values, True),
            (2 * num_bytes - 1, 2 * num_values, False),
            (2 * num_bytes, 2 * num_values - 1, False),
        ):
            monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", most_bytes)
            monkeypatch.setattr(row_limits, "MAX_ROW_VALUES", most_values)
            assert fits_a_row(batch) is fits, (most_bytes, most_values)


def test_a_long_word_counts_in_each_row_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = pa.array(["a" * 100] + ["b"] * 99).dictionary_encode()
    batch = pa.record_batch({"a": words})
    for most, fits in ((199, True), (198, False)):
        monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", most)
        assert fits_a_row(batch) is fits
    assert fits_a_row(pa.record_batch({"a": words}).select([]))


def test_columns_of_nothing_and_of_several_types_have_a_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", 20)
    unused = pa.DictionaryArray.from_arrays(pa.array([None] * 9, pa.int32()), ["a" * 10])
    either = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2])] * 2)
    for column, extent in (
        (unused, (0, 9)),
        (pa.array([None], pa.string()), (0, 1)),
        (pa.array([b"abc"], pa.binary_view()), (3, 1)),
        (pa.array([1, 2, 1]).dictionary_encode(), (48, 3)),
        (either, (max(16, either.nbytes), 2)),
    ):
        assert row_limits._extent(column) == extent
