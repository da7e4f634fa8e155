"""What a Parquet file may take in memory is known from its page headers, and never less."""

import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infrastructure.data.readers import parquet_pages
from infrastructure.data.readers.parquet_pages import (
    LEVEL_BYTES,
    MAX_NESTING,
    Column,
    Page,
    _column,
    _header,
    check_nesting,
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
            mib = re.escape(f"parquet_column(column=lists.list.element), mib={largest / 2**20})")
            with pytest.raises(ValueError, match=BOUND + mib):
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


def test_a_text_that_repeats_the_one_before_may_be_copied_into_each_row(tmp_path: Path) -> None:
    """As in a dictionary: what a page holds does not bound what its rows hold."""
    texts = ["a long beginning of all " * 9 + f"{n}" for n in range(NUM_ROWS)]
    path = tmp_path / "rows.parquet"
    for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"):
        options: Any = {"use_dictionary": False, "column_encoding": {"texts": encoding}}
        pq.write_table(pa.table({"texts": texts}), path, **options)
        column = columns(path, in_dictionaries=True)["texts"]
        assert column.repeats is (encoding == "DELTA_BYTE_ARRAY")
        assert not column.stays_in_dictionary
        assert column.batch_bytes(100) >= pq.read_table(path).slice(0, 100).nbytes
        assert column.whole_bytes() >= pq.read_table(path).nbytes
        grows_by = column.batch_bytes(100) - column.batch_bytes(50)
        assert (grows_by == 50 * column.largest_bytes) is column.repeats


@pytest.mark.parametrize(
    ("encodings", "expected"),
    [({}, ["texts", "lists.list.element"]), ({"texts": "PLAIN"}, ["lists.list.element"])],
)
def test_texts_that_a_dictionary_holds_are_read_as_such(
    tmp_path: Path, encodings: dict[str, str], expected: list[str]
) -> None:
    table = pa.table({"texts": ["a"] * 9, "numbers": [1] * 9, "lists": [["b"]] * 9})
    path = tmp_path / "rows.parquet"
    texts: list[str] = [name for name in ("texts", "lists.list.element") if name not in encodings]
    pq.write_table(table, path, use_dictionary=[*texts, "numbers"], column_encoding=encodings)
    assert texts_in_dictionaries(pq.read_metadata(path)) == expected
    pq.write_table(table, path, use_dictionary=texts, dictionary_pagesize_limit=1)
    falls_back = texts_in_dictionaries(pq.read_metadata(path))
    assert falls_back in ([], expected)  # as pyarrow writes pages of one word


@pytest.mark.parametrize(
    ("sizes", "num_rows", "most"),
    [([10, 20, 5], 1, 35), ([9] * 4, 1, 18), ([9] * 4, 2, 27), ([9] * 4, 99, 36), ([], 3, 0)],
)
def test_rows_may_touch_a_page_more_than_there_are_rows(
    sizes: list[int], num_rows: int, most: int
) -> None:
    pages = [Page(False, size, 1, 0) for size in sizes]
    column = Column("a", "BYTE_ARRAY", 0, False, False, 1, pages)
    assert column.batch_bytes(num_rows) == max(sizes, default=0) + most


BOUND = r"data\.parquet_too_large\(file=rows\.parquet, part=data\."


@pytest.mark.parametrize(
    ("bound", "part"),
    [
        ("MAX_PAGE_BYTES", r"parquet_page\(column=texts\)"),
        ("MAX_BATCH_BYTES", r"parquet_value\(column=fixed\)"),
    ],
)
def test_what_may_be_larger_than_memory_is_refused_by_name(
    bound: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    fixed = pa.array([b"x" * 60] * 9, pa.binary(60))
    pq.write_table(pa.table({"texts": ["y" * 90] * 9, "fixed": fixed}), path, use_dictionary=False)
    found = columns(path)
    least = {
        "MAX_PAGE_BYTES": found["texts"].largest_bytes,
        "MAX_BATCH_BYTES": 60 * parquet_pages.LEAST_ROWS_HELD,
    }[bound]
    for limit, is_refused in ((least, False), (least - 1, True)):
        monkeypatch.setattr(parquet_pages, bound, limit)
        if is_refused:
            size = found["texts"].largest_bytes if bound == "MAX_PAGE_BYTES" else 60
            with pytest.raises(ValueError, match=BOUND + rf"{part}, mib={size / 2**20}\)"):
                rows(path)
        else:
            assert rows(path) >= 1


def test_a_row_that_may_be_larger_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    flat = [column for column in columns(path).values() if not column.is_in_list]
    size = sum(column.batch_bytes(1) for column in flat)
    stored = sum(column.stored_bytes for column in flat)
    for ratio, limit, is_refused in (
        (0, size, False),
        (size // stored + 1, 1, False),  # as large on disk: it is honest
        (0, size - 1, True),
    ):
        monkeypatch.setattr(parquet_pages, "HONEST_RATIO", ratio)
        monkeypatch.setattr(parquet_pages, "MAX_ROW_GROUP_BYTES", limit)
        monkeypatch.setattr(parquet_pages, "_check", lambda column, name: None)
        if is_refused:
            with pytest.raises(ValueError, match=BOUND + rf"parquet_row\(\), mib={size / 2**20}\)"):
                rows(path)
        else:
            assert rows(path) == parquet_pages.MAX_ROWS


@pytest.mark.parametrize("depth", [MAX_NESTING, MAX_NESTING + 1])
def test_columns_may_be_nested_as_deep_as_the_bound(depth: int, tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(depth):
        value = {"x": value}
    pq.write_table(pa.table({"flat": [1], "deep": [value]}), tmp_path / "rows.parquet")
    metadata = pq.read_metadata(tmp_path / "rows.parquet")
    if depth == MAX_NESTING:
        check_nesting(metadata, "rows.parquet")
    else:
        refusal = r"nested_too_deep\(file=rows\.parquet, column=deep, max_nesting=50\)"
        with pytest.raises(ValueError, match=refusal):
            check_nesting(metadata, "rows.parquet")


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        (b"\x15\x04\x15\x06\x00", {1: 2, 2: 3}),
        (b"\x15\x03\x00", {1: -2}),
        (b"\x05\x0e\x07\x00", {7: -4}),  # a number of its own instead of a step
        (b"\x11\x12\x13\x7f\x00", {1: True, 2: False, 3: 127}),
        (b"\x16\x80\x01\x00", {1: 64}),
        (b"\x17" + bytes(8) + b"\x15\x02\x00", {1: None, 2: 1}),
        (b"\x18\x03abc\x15\x02\x00", {1: None, 2: 1}),
        (b"\x1c\x15\x02\x00\x15\x04\x00", {1: {1: 1}, 2: 2}),
        (b"\x00", {}),
    ],
)
def test_a_page_header_is_read_by_its_fields(content: bytes, fields: dict[int, Any]) -> None:
    for offset in (0, 5):
        assert _header(io.BytesIO(bytes(offset) + content + b"more"), offset) == (
            fields,
            len(content),
        )


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"\x15", "header_truncated"),
        (b"\x18\x7f" + bytes(99), "header_truncated"),
        (b"\x15" + b"\xff" * 10 + b"\x01\x00", "header_number_too_long"),
        (b"\x19\x00", "header_unknown_field"),
        (b"\x1c" * 20, "header_too_deep"),
    ],
)
def test_a_damaged_page_header_is_refused(content: bytes, refusal: str) -> None:
    with pytest.raises(ValueError, match=rf"^data\.parquet_{refusal}\(\)$"):
        _header(io.BytesIO(content), 0)


def test_a_page_header_may_be_longer_than_what_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = b"\x18\xac\x02" + bytes(300) + b"\x15\x02\x00"
    for most, is_read in ((16 * 16, False), (16 * 16 * 16, True)):
        monkeypatch.setattr(parquet_pages, "HEADER_BYTES", 16)
        monkeypatch.setattr(parquet_pages, "MAX_HEADER_BYTES", most)
        if is_read:
            assert _header(io.BytesIO(content), 0) == ({1: None, 2: 1}, len(content))
        else:
            with pytest.raises(ValueError, match="header_truncated"):
                _header(io.BytesIO(content), 0)


def page_header(kind: int, size: int, stored: int, num_values: int) -> bytes:
    """Fields 1 to 3 of a page, and its values and encoding in the field of its kind."""

    def number(value: int) -> bytes:
        zigzag = (value << 1) ^ (value >> 31)
        out = b""
        while zigzag > 127:
            out, zigzag = out + bytes([zigzag & 127 | 128]), zigzag >> 7
        return out + bytes([zigzag])

    start = b"".join(b"\x15" + number(value) for value in (kind, size, stored))
    at = {0: b"\x2c", 2: b"\x4c"}[kind]
    return start + at + b"\x15" + number(num_values) + b"\x15\x00\x00\x00"


class Chunk:
    """Where the pages of a column lie."""

    has_dictionary_page, dictionary_page_offset, data_page_offset = False, None, 0
    num_values, total_compressed_size = 3, 1000


@pytest.mark.parametrize(
    ("header", "refusal"),
    [
        (page_header(0, -1, 4, 3), "negative_page_size"),
        (page_header(0, 4, -1, 3), "negative_page_size"),
        (page_header(0, 4, 4, -1), "negative_value_count"),
    ],
)
def test_a_page_of_less_than_nothing_is_refused(header: bytes, refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        list(parquet_pages._pages(io.BytesIO(header + bytes(9)), Chunk()))  # type: ignore[arg-type]


def test_pages_are_read_until_all_values_are_found() -> None:
    pages = [page_header(2, 40, 2, 7) + b"xx", *[page_header(0, 50, 1, 2) + b"x"] * 3]
    found = list(parquet_pages._pages(io.BytesIO(b"".join(pages)), Chunk()))  # type: ignore[arg-type]
    assert found == [Page(True, 40, 7, 0), Page(False, 50, 2, 0), Page(False, 50, 2, 0)]
