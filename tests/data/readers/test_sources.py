"""Every format is read with places, broken rows are told apart, and wrong files are named."""

import bz2
import gzip
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.features import plugins_of
from infrastructure.data.readers import compressed, json_format, row_limits, sources
from infrastructure.data.readers import rows as reasons
from infrastructure.data.readers.json_format import lists_of
from infrastructure.data.readers.line_reader import MAX_LINE_BYTES, Start
from infrastructure.data.readers.row_limits import (
    MAX_ROW_BYTES,
    too_large_words,
)
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.readers.sources import (
    FORMATS,
    READERS,
    DataFile,
    about_splits,
    data_files_hash,
    discover,
    files_of,
    held_out_beside,
    may_be_on_the_hub,
    refuse_missing_data,
    refuse_no_data,
    refuse_unreachable,
    register_format,
)
from infrastructure.data.readers.table_formats import load_huggingface
from tests.data.file_shapes import sheet, zipped

ROWS = [
    {"prompt": "one", "answer": "1"},
    {"prompt": 'two "quoted", with comma', "answer": "line\nbreak"},
    {"prompt": "drei ä 你好\u2028", "answer": "3"},
]
COLUMNS = ("prompt", "answer")


def write_csv(path: Path, delimiter: str = ",") -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    lines = [delimiter.join(COLUMNS)]
    lines += [delimiter.join(quoted(row[column]) for column in COLUMNS) for row in ROWS]
    path.write_bytes(("\n".join(lines) + "\n").encode())


def write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=2)


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for column in COLUMNS:
            file.create_dataset(column, data=[row[column] for row in ROWS])


def write_jsonl(path: Path) -> None:
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS), "utf-8")


def as_lines() -> bytes:
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write_gz(path: Path) -> None:
    path.write_bytes(gzip.compress(as_lines()))


WRITERS = {
    "data.jsonl": write_jsonl,
    "data.ndjson": write_jsonl,
    "data.jsonl.gz": write_gz,
    "array.json": lambda path: path.write_text(json.dumps(ROWS, indent=1), "utf-8"),
    "object.json": lambda path: path.write_text(
        json.dumps({"version": [1, {"a": 2}], "data": ROWS, "end": None}), "utf-8"
    ),
    "lines.json": write_jsonl,
    "array.jsonl": lambda path: path.write_text(json.dumps(ROWS, ensure_ascii=False), "utf-8"),
    "marked.jsonl": lambda path: path.write_bytes(
        b"\xef\xbb\xbf" + "\r\n".join(json.dumps(row) for row in ROWS).encode()
    ),
    "data.jsonl.bz2": lambda path: path.write_bytes(bz2.compress(as_lines())),
    "data.jsonl.zst": lambda path: path.write_bytes(zstandard.compress(as_lines())),
    "data.zip": lambda path: path.write_bytes(zipped({"inside/rows.jsonl": as_lines()})),
    "objects.jsonl": lambda path: path.write_text(
        "\n".join(json.dumps(row, indent=2) for row in ROWS)
    ),
    "side_by_side.json": lambda path: path.write_text("".join(map(json.dumps, ROWS))),
    "records.json": lambda path: path.write_text(json.dumps(dict(enumerate(ROWS)))),
    "columns.json": lambda path: path.write_text(
        json.dumps({column: [row[column] for row in ROWS] for column in COLUMNS})
    ),
    "split.json": lambda path: path.write_text(
        json.dumps({"columns": COLUMNS, "data": [[*row.values()] for row in ROWS]})
    ),
    "data.xlsx": lambda path: path.write_bytes(
        sheet([[*COLUMNS], *([*row.values()] for row in ROWS)])
    ),
    "data.csv": write_csv,
    "semicolon.csv": lambda path: write_csv(path, ";"),
    "data.tsv": lambda path: write_csv(path, "\t"),
    "data.parquet": write_parquet,
    "data.h5": write_hdf5,
    "saved": lambda path: datasets.Dataset.from_list(ROWS).save_to_disk(str(path)),
}


def written(folder: Path, name: str) -> Path:
    """A file of `ROWS`."""
    if name.endswith(".xlsx"):
        pytest.importorskip("openpyxl")
    WRITERS[name](folder / name)
    return folder / name


def one_file(path: Path) -> DataFile:
    (file,) = discover(str(path))
    return file


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name)
    found = list(one_file(path).rows())
    assert [row.values for row in found if isinstance(row, Row)] == ROWS


@pytest.mark.parametrize("name", WRITERS)
def test_reading_can_start_at_any_row(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name)
    file = one_file(path)
    found = list(file.rows())
    assert [row.source for row in found] == [name] * len(ROWS)
    for index, row in enumerate(found):
        assert list(file.rows(Start(row.offset, row.line))) == found[index:]


def test_an_archive_is_bounded_before_it_is_listed(tmp_path: Path, monkeypatch: Any) -> None:
    path = written(tmp_path, "data.zip")
    monkeypatch.setattr(compressed, "MAX_LISTING_BYTES", 50)
    with pytest.raises(ValueError, match=r"data\.zip_too_large"):
        one_file(path)


def test_no_more_of_a_workbook_is_unpacked_than_it_states(tmp_path: Path, monkeypatch: Any) -> None:
    path = written(tmp_path, "data.xlsx")
    whole = path.read_bytes()
    assert compressed.inflated_bytes(path) > 1500
    with zipfile.ZipFile(path) as archive:
        sizes = [info.file_size for info in archive.infolist()]
    lied = whole
    for size in sizes:
        lied = lied.replace(size.to_bytes(4, "little"), (1).to_bytes(4, "little"))
    path.write_bytes(lied)
    assert compressed.inflated_bytes(path) < 100
    with pytest.raises(ValueError, match=r"excel\.damaged"):
        one_file(path)
    path.write_bytes(whole)
    monkeypatch.setattr("infrastructure.features.excel.reader.MAX_WORKBOOK_BYTES", 1000)
    with pytest.raises(ValueError, match=r"excel\.too_large.*max_mib=0"):
        one_file(path)


@pytest.mark.parametrize("ending", ["jsonl.gz", "jsonl.bz2", "jsonl.zst", "zip", "xlsx"])
def test_a_file_that_is_cut_off_is_never_read_as_a_shorter_one(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, f"data.{ending}")
    whole = path.read_bytes()
    for length in range(12, len(whole) - 1, max(1, len(whole) // 20)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"data\."):
            list(one_file(path).rows())


def test_json_elements_may_be_cut_by_chunks(tmp_path: Path, monkeypatch: Any) -> None:
    values = [{"a": "x" * n + '\\" \u00e9 😀', "n": -1.5e-3, "b": [True, None]} for n in range(40)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(values), "utf-8")
    monkeypatch.setattr("infrastructure.data.readers.json_format.READ_BYTES", 7)
    assert [row.values for row in one_file(path).rows() if isinstance(row, Row)] == values


BAD_LINES = {
    b'{"a": 1': (reasons.BROKEN_JSON, "column=8"),
    b"{'a': 1}": (reasons.BROKEN_JSON, "column=2"),
    b'{"a": "x': (reasons.BROKEN_JSON, "starting, column=7"),
    b"[" * 100_000: (reasons.BROKEN_JSON, ""),
    b'{"a": "\xff"}': (reasons.INVALID_UTF8, "data.byte_of_line(position=8)"),
    b"[1, 2]": (reasons.WRONG_TYPE, "data.line_not_object(kind=a list)"),
    b"42": (reasons.WRONG_TYPE, "a number"),
    b"x" * (MAX_LINE_BYTES + 5): (reasons.LINE_TOO_LONG, "data.row_too_long(max_mib=16)"),
}


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_set_aside_with_its_place(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + bad + b'\n{"a": 3}\n')
    first, wrong, last = one_file(path).rows()
    assert isinstance(first, Row)
    assert isinstance(last, Row)
    assert (last.values, last.line) == ({"a": 3}, 3)
    assert isinstance(wrong, BadRow)
    reason, detail = BAD_LINES[bad]
    assert (wrong.place, wrong.reason) == ("a.jsonl:2", reason)
    assert detail in wrong.detail
    assert len(wrong.excerpt) <= 120


def one_column(texts: list[bytes]) -> Callable[[Path], None]:
    """Writes a Parquet or an HDF5 file of texts that may be no UTF-8."""

    def write(path: Path) -> None:
        if path.suffix == ".h5":
            with h5py.File(path, "w") as file:
                file.create_dataset("text", data=np.array(texts))
        else:
            column = pyarrow.array(texts).view(pyarrow.string())
            pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)

    return write


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", write_jsonl, {1: "", 3: "", 5: ""}),  # a blank line between rows
        ("a.csv", write_csv, {2: "", 3: "", 5: ""}),  # the second row holds a line break
        ("a.json", b"[\n{},\n\n{}]", {2: "", 4: ""}),
        # one line: rows are numbered
        ("a.json", b"[{}, {}, 3]\n", {1: "", 2: "", 3: reasons.WRONG_TYPE}),
        (
            "a.csv",
            b'a,b\n1,2\n1,2,3\n\n\xff,2\n"x"y,2\n"ok",2\n',
            {
                2: "",
                3: reasons.WRONG_COLUMNS,
                5: reasons.INVALID_UTF8,
                6: reasons.BROKEN_CSV,
                7: "",
            },
        ),
        ("a.txt", b"one\n\n\xff\xfeoops\n\nthree\n", {1: "", 3: reasons.INVALID_UTF8, 5: ""}),
        (
            "a.json",
            b'[{"a": "x"},\n5,\n{"a": "\xff"},\n{"a": "y"}]',
            {1: "", 2: reasons.WRONG_TYPE, 3: reasons.INVALID_UTF8, 4: ""},
        ),
        *(
            (name, one_column([b"good", b"\xff", b"fine"]), {1: "", 2: reasons.INVALID_UTF8, 3: ""})
            for name in ("a.parquet", "a.h5")
        ),
    ],
)
def test_rows_have_their_lines_and_bad_ones_are_set_aside(
    tmp_path: Path, name: str, content: bytes | Callable[[Path], None], expected: dict[int, str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    found = list(one_file(path).rows())
    assert [(row.line, getattr(row, "reason", "")) for row in found] == [*expected.items()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\nfirst\nstill first\n\n\nsecond\n", {2: "first\nstill first", 6: "second"}),
        ("one\ntwo\nthree\n\n", {1: "one", 2: "two", 3: "three"}),
    ],
)
def test_text_is_read_by_paragraphs_or_by_lines(
    tmp_path: Path, text: str, expected: dict[int, str]
) -> None:
    (tmp_path / "a.txt").write_text(text)
    rows = list(one_file(tmp_path / "a.txt").rows())
    assert {row.line: row.values["text"] for row in rows if isinstance(row, Row)} == expected
    assert len(rows) == len(expected)


PARQUET: dict[str, dict[str, Any]] = {
    "dictionary": {"compression": "zstd"},
    "plain": {"compression": "none", "use_dictionary": False},
    "one dictionary": {"use_dictionary": ["text"], "data_page_version": "2.0"},
    "falls back": {"dictionary_pagesize_limit": 100, "data_page_size": 200},
    "delta": {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    "lengths": {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
    "row groups": {"row_group_size": 70, "data_page_size": 100},
}


@pytest.mark.parametrize("how", PARQUET)
def test_parquet_is_read_alike_however_it_was_written(tmp_path: Path, how: str) -> None:
    rows = [
        {
            "text": None if n % 11 == 0 else f"text {n % 5}" * (n % 3),
            "binary": b"\xe2\x82\xac %d" % n,
            "messages": [{"role": "user", "content": f"{n % 4}"}] * (n % 3) if n % 7 else None,
            "tags": [["a", f"{n}"], [], None] if n % 2 else [],
        }
        for n in range(300)
    ]
    path, arguments = tmp_path / "a.parquet", PARQUET[how]
    if "column_encoding" in arguments:
        leaves = ["messages.list.element.role", "messages.list.element.content"]
        leaves += ["text", "binary", "tags.list.element.list.element"]
        arguments = {
            **arguments,
            "column_encoding": dict.fromkeys(leaves, arguments["column_encoding"]),
        }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, **arguments)
    found = list(one_file(path).rows())
    assert [row.values for row in found if isinstance(row, Row)] == rows
    assert [row.line for row in found] == list(range(1, 301))
    for start in (1, 69, 70, 71, 299):
        rest = [row.values for row in one_file(path).rows(Start(start, start + 1))]  # type: ignore[union-attr]
        assert rest == rows[start:]


def test_keys_that_a_table_adds_to_messages_are_left_out(tmp_path: Path) -> None:
    """A column has one type: each call has the arguments of all of them, most of them null."""
    calls = [{"name": "add", "arguments": {"a": 1}}, {"name": "find", "arguments": {"text": "x"}}]
    rows = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": calls}]}
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (row,) = one_file(tmp_path / "a.parquet").rows()
    assert isinstance(row, Row)
    assert row.values == rows[0]


def test_a_row_that_is_too_large_is_set_aside_and_its_neighbours_stay(tmp_path: Path) -> None:
    texts = [f"{n}" for n in range(300)]
    texts[123] = "a" * (MAX_ROW_BYTES + 1)
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    found = list(one_file(tmp_path / "a.parquet").rows())
    assert [row.offset for row in found] == list(range(300))
    [bad] = [row for row in found if isinstance(row, BadRow)]
    assert (bad.line, bad.reason, bad.detail) == (124, reasons.LINE_TOO_LONG, too_large_words())


def test_many_values_in_a_line_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_limits, "MAX_ROW_VALUES", 1000)
    lists = b'{"a": [' + b"[]," * 1000 + b"[]]}"
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' + lists + b'\n{"a": 3}\n')
    kinds = [type(row) for row in one_file(tmp_path / "a.jsonl").rows()]
    assert kinds == [Row, BadRow, Row]
    monkeypatch.setattr(json_format, "READ_BYTES", 100)
    (tmp_path / "a.json").write_bytes(b"[" + lists + b"]")
    with pytest.raises(ValueError, match=r"data\.json_broken.*line=1"):
        list(one_file(tmp_path / "a.json").rows())


def test_a_record_or_a_passage_without_end_is_not_held(tmp_path: Path) -> None:
    lines = (b"a" * 9999 + b"\n") * (MAX_ROW_BYTES // 10_000 + 1)
    (tmp_path / "a.csv").write_bytes(b'a,b\n1,2\n"' + lines + b'","' + lines)
    with pytest.raises(ValueError, match=r"data\.quote_never_closed.*file=a\.csv.*line=3"):
        list(one_file(tmp_path / "a.csv").rows())
    (tmp_path / "a.txt").write_bytes(b"first\n\n" + lines + b"\nlast\n")
    first, bad, last = one_file(tmp_path / "a.txt").rows()
    assert isinstance(first, Row)
    assert isinstance(bad, BadRow)
    assert (bad.reason, bad.line) == (reasons.LINE_TOO_LONG, 3)
    assert isinstance(last, Row)
    assert last.values == {"text": "last"}


NOISE = np.random.RandomState(0).bytes(150_000)  # a file that is read in pieces
WRONG_FILES = {
    "empty.jsonl": (
        b" \n",
        r"data\.file_not_text.*kind=data\.kind_empty.*data\.give_nonempty_file",
    ),
    "zipped.jsonl": (gzip.compress(b"{}"), r"kind=data\.kind_gzip.*data\.add_gz_extension"),
    "excel.csv": (b"PK\x03\x04" + bytes(9), r"kind=data\.kind_zip\(\)"),
    "nothing.jsonl": (b"PK\x05\x06" + bytes(18), r"kind=data\.kind_empty_zip"),
    "archive.txt": (b"a".ljust(257, b"\0") + b"ustar\x0000", r"kind=data\.kind_tar"),
    "zipped.parquet": (
        b"PK\x03\x04" + bytes(9),
        r"data\.file_not_of_format.*format=Parquet.*kind=data\.kind_zip\(\)",
    ),
    "page.jsonl": (b"\n<!DOCTYPE html><html>", r"kind=data\.kind_web_page"),
    "pointer.jsonl": (
        b"version https://git-lfs.github.com/spec/v1\noid",
        r"kind=data\.kind_lfs_pointer.*data\.fetch_lfs_file",
    ),
    "wide.csv": (
        "a,b\n".encode("utf-16-be"),
        r"data\.utf16_without_bom.*data\.set_encoding\(encoding=utf-16-be\)",
    ),
    "noise.txt": (b"abc\x00def", r"kind=data\.kind_binary"),
    "table.jsonl": (b"PAR1xxxx", r"kind=data\.kind_parquet.*data\.rename_parquet"),
    "model.txt": (b"\x80\x04\x95", r"kind=data\.kind_pickle"),
    "not.parquet": (
        b"a,b\n1,2\n",
        r"data\.file_not_of_format.*format=Parquet, what=data\.but_text",
    ),
    "page.parquet": (
        b"<html>",
        r"data\.file_not_of_format.*format=Parquet.*kind=data\.kind_web_page",
    ),
    "cut.parquet": (b"PAR1" + bytes(20), r"data\.parquet_damaged\(file=cut\.parquet"),
    "not.h5": (b"a,b\n1,2\n", r"data\.file_not_of_format.*format=HDF5"),
    "cut.h5": (b"\x89HDF\r\n\x1a\n" + bytes(20), r"hdf5\.damaged\(file=cut\.h5"),
    "cut.jsonl.gz": (
        gzip.compress(b'{"a": "%s"}\n' % NOISE.hex().encode())[:-1000],
        r"data\.compressed_data_truncated",
    ),
    "plain.jsonl.gz": (b'{"a": 1}\n', r"data\.compressed_file_damaged.*kind=gzip"),
    "cut.json": (b'[{"a": 1}, {"a": ', r"data\.json_broken\(file=cut\.json, line=1,"),
    "wrong.json": (
        b'[{"a": 1}\n, {"a" 2}, {"a": 3}]' + b" " * 99,
        r"data\.json_broken\(file=wrong\.json, line=2,",
    ),
    "after.json": (b'[{"a": 1}] {}', r"reason=data\.json_text_after_end"),
    "open.json": (
        b'[{"a": "x',
        r"data\.json_broken\(file=open\.json, line=1, reason=data\.json_error_on_line\("
        r"error=Unterminated string starting, line=1",
    ),
    "scalar.json": (b'{\n"a" 1}', r"data\.json_broken\(file=scalar\.json, line=2,"),
    "twice.json": (
        b'{"data": [{"a": 1}],\n"data": [{"a": 2}]}',
        r"json_broken\(file=twice\.json, line=2, reason=data\.json_key_twice\(key=data\)",
    ),
    "gap.json": (b'[{"a": 1}\n{"a": 2}]', r"line=2, reason=data\.json_expected\(character=,\)"),
    "colon.json": (b'{"data", [{}]}', r"reason=data\.json_expected\(character=:\)"),
    "cut_list.json": (b'{"data": [{"a": 1}, ', r"data\.json_broken\(file=cut_list\.json, line=1,"),
    "cut_object.json": (b'{"data": [{"a": 1}]', r"reason=data\.json_expected\(character=}\)"),
    "wide.json": (
        json.dumps({f"k{n}": n for n in range(1002)}).encode(),
        r"json_object_too_large\(file=wide\.json, max_mib=32, max_columns=1000\)",
    ),
    "deep.json": (b'[{"a": 1},\n{"a": ' + b"[" * 3000, r"json_broken\(file=deep\.json, line=2,"),
    "latin.csv": (
        b"q\xfcestion,answer\n1,2\n",
        r"data\.header_not_utf8\(header=latin\.csv:1:.*"
        r"remedy=data\.windows_text\(encoding=cp1252\)",
    ),
    "rows.parquet.gz": (
        gzip.compress(b"PAR1" + bytes(20)),
        r"data\.compressed_binary_file\(path=.*rows\.parquet\.gz, format=parquet\)",
    ),
    "open.csv": (b'a,b\n1,2\n"x,2\n1,2\n', r"data\.quote_never_closed\(file=open\.csv, line=3\)"),
    "twice.csv": (b"a,b,a\n1,2,3\n", r"data\.table_column_twice\(file=twice\.csv, column=a\)"),
    "nothing.csv": (b",,\n1,2,3\n", r"data\.table_without_header\(file=nothing\.csv\)"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    content, sentence = WRONG_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"(?s){sentence}"):
        list(one_file(tmp_path / name).rows())


def test_a_folder_is_read_in_order_and_tables_come_before_loose_texts(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.csv", "sub/c.jsonl", "README.txt", "x.bin", ".hidden/d.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a,b\n1,2\n" if name.endswith("csv") else '{"a": "1"}\n')
    files = discover(str(tmp_path))
    assert [file.name for file in files] == ["a.csv", "b.jsonl", "sub/c.jsonl"]
    assert files[0].note == "data.files_skipped(files_are=data.files_is(files=x.bin))"
    assert [file.name for file in discover(str(tmp_path), "text")] == ["README.txt"]


def test_a_folder_without_data_is_named_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"data\.folder_without_data_files.*names=picture\.png"):
        discover(str(tmp_path))


def named_texts(folder: Path, *names: str) -> None:
    """Write files that contain their own names; those in text formats have one row each."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"a": "1"}\n' if path.suffix == ".jsonl" else "a,b\n1,2\n")


@pytest.mark.parametrize(
    ("names", "data_format", "read", "skipped"),
    [
        ("b.jsonl notes.txt a.csv", "auto", "a.csv b.jsonl", "notes.txt"),
        ("b.txt LICENSE.txt README.md", "auto", "b.txt", ""),
        ("README.txt x.bin", "auto", "README.txt", "x.bin"),
        ("a.jsonl README.txt config.json x.png X.JPG", "auto", "a.jsonl", "config.json"),
        ("a.csv b.jsonl x.bin", "jsonl", "b.jsonl", "a.csv, x.bin"),
        ("a.log b.dat", "csv", "a.log b.dat", ""),
        ("README.txt a.txt b.jsonl", "text", "a.txt", "b.jsonl"),
        ("README.txt b.jsonl", "text", "README.txt", "b.jsonl"),
        (".a.jsonl _b/c.jsonl d/.e/f.jsonl g/h.jsonl", "auto", "g/h.jsonl", ""),
    ],
)
def test_files_of_a_folder_are_read_or_named(
    tmp_path: Path, names: str, data_format: str, read: str, skipped: str
) -> None:
    named_texts(tmp_path, *names.split())
    files = discover(str(tmp_path), data_format)
    assert [file.name for file in files] == read.split()
    several = "are" if "," in skipped else "is"
    words = f"data.files_skipped(files_are=data.files_{several}(files={skipped}))"
    assert [file.note for file in files] == [words if skipped else "", *[""] * (len(files) - 1)]


def test_the_note_of_a_folder_names_all_that_is_not_trained_on(tmp_path: Path) -> None:
    named_texts(tmp_path, "x/train.jsonl", "y/train.jsonl", "z/test.jsonl", "more.bin")
    (tmp_path / "a.zip").write_bytes(zipped({"train.jsonl": as_lines(), "notes.txt": b""}))
    first, *others = discover(str(tmp_path))
    assert [file.name for file in (first, *others)] == ["a.zip", "x/train.jsonl", "y/train.jsonl"]
    assert first.note.split("; ") == [
        "data.archive_member_read(archive=a.zip, member=train.jsonl, "
        "others=data.other_files_skipped(count=1))",
        "data.folders_trained_together(folders_are=data.files_are(files=., x, y))",
        "data.files_skipped(files_are=data.files_is(files=more.bin))",
    ]
    [test] = first.test
    assert (test.path, test.name, test.format) == (
        tmp_path / "z/test.jsonl",
        "z/test.jsonl",
        "auto",
    )


def test_a_link_is_followed_and_a_broken_one_named(tmp_path: Path) -> None:
    named_texts(tmp_path, "a/rows.jsonl")
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "link.jsonl").symlink_to(tmp_path / "a/rows.jsonl")
    for place in (folder, folder / "link.jsonl"):
        [file] = discover(str(place))
        assert (file.name, len(list(file.rows()))) == ("link.jsonl", 1)
    broken = folder / "broken.jsonl"
    broken.symlink_to("nowhere")
    for place in (folder, broken):
        words = f"data.broken_link(what=held-out data, path={broken}, target=nowhere)"
        with pytest.raises(ValueError, match=re.escape(words)):
            discover(str(place), what="held-out data")


def test_a_place_without_a_file_of_data_is_named(tmp_path: Path) -> None:
    extensions = ", ".join(sources._by_extension())
    refusal = "data.folder_without_data_files(folder={}, names={}, extensions={})"
    for number, names in ((0, "nothing"), (6, "0.x, 1.x, 2.x, 3.x, 4.x")):
        named_texts(tmp_path, *(f"{n}.x" for n in range(number)))
        words = refusal.format(tmp_path, names, extensions)
        with pytest.raises(ValueError, match=re.escape(words)):
            discover(str(tmp_path))
    assert ".jsonl" in extensions
    assert ".parquet, .pq" in extensions
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ValueError, match=rf"not_a_regular_file\(path={tmp_path}/pipe\.jsonl\)"):
        discover(str(tmp_path / "pipe.jsonl"))
    with pytest.raises(
        ValueError, match=r"url_instead_of_file\(what=it, url=https://x\.y/a\.csv\)"
    ):
        discover("https://name:secret@x.y/a.csv", what="it")
    with pytest.raises(ValueError, match="no_such_module"):
        discover(str(tmp_path / "none"), "no_such_module:read")


def test_the_encoding_that_is_given_is_that_of_each_text(tmp_path: Path) -> None:
    rows = [{"a": "Größe"}, {"a": "Länge"}]
    lists = json.dumps({"train": rows[:1], "test": rows[1:]}, ensure_ascii=False)
    (tmp_path / "a.json").write_bytes(lists.encode("cp1252"))
    lines = '{"a": "Größe"}\n{"a" "ß"}\n'
    (tmp_path / "b.jsonl").write_bytes(lines.encode("cp1252") + b'{"a": "abcdefgh \x81"}\n')
    config = DataConfig(path=str(tmp_path), eval_path=str(tmp_path / "b.jsonl"), encoding="cp1252")
    [first, second], [held_out] = files_of(config)
    assert {file.encoding for file in (first, second, held_out)} == {"cp1252"}
    [inside] = held_out_beside([first])
    assert [row.values for file in (first, inside) for row in file.rows()] == rows  # type: ignore[union-attr]
    row, broken, other = held_out.rows()
    assert isinstance(row, Row)
    assert row.values == rows[0]
    assert isinstance(broken, BadRow)
    assert broken.reason == reasons.BROKEN_JSON
    assert isinstance(other, BadRow)
    seen = (other.line, other.reason, other.detail, other.encoding)
    assert seen == (3, reasons.OTHER_ENCODING, "cp1252", "")
    (tmp_path / "wide.csv").write_bytes("a,b\n1,2\n".encode("utf-16-le"))
    write_parquet(tmp_path / "c.parquet")
    [table] = discover(str(tmp_path / "c.parquet"), encoding="cp1252")
    note = "data.encoding_of_binary_file(file=c.parquet, format=parquet)"
    assert (table.note, table.encoding) == (note, "")
    assert one_file(tmp_path / "c.parquet").note == ""
    (tmp_path / "d.csv").write_text("a\n1\n")
    assert discover(str(tmp_path / "d.csv"), encoding="cp1252")[0].note == ""
    wide = DataConfig(path=str(tmp_path / "wide.csv"), encoding="utf-16-le")
    assert data_files_hash(wide) is not None


@pytest.mark.parametrize(
    ("place", "data_format", "splits", "test"),
    [
        ("owner/name", "auto", ("train", "x", "Test", "dev", "y"), ["owner/name@Test"]),
        ("name", "huggingface", None, []),
        ("owner/name@train", "auto", ("train", "test"), []),
    ],
)
def test_a_dataset_of_the_hub_has_its_splits(
    place: str, data_format: str, splits: Any, test: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = SimpleNamespace(info=SimpleNamespace(splits=splits))
    monkeypatch.setattr(sources, "load_huggingface", lambda given: {place: loaded}[given])
    [file] = discover(place, data_format)
    assert (file.path, file.name, file.format) == (Path(place), place, "huggingface")
    assert [(one.path, one.name) for one in file.test] == [(Path(name), name) for name in test]
    assert [one.name for one in file.held_out] == ["owner/name@dev"] * len(test)
    assert {one.format for one in (*file.held_out, *file.test)} == (
        {"huggingface"} if test else set()
    )
    rest = "data.files_skipped(files_are=data.files_are(files=owner/name@x, owner/name@y))"
    assert file.note == (rest if test else "")


def test_what_may_not_be_read_is_neither_missing_nor_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "more"
    inside.mkdir()
    (tmp_path / "a.jsonl").write_text("{}\n")
    monkeypatch.setattr(os, "access", lambda path, mode: path != inside)
    with pytest.raises(
        ValueError, match=rf"data\.no_read_permission\(what=training data, file={inside},"
    ):
        discover(str(tmp_path))

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    refusal = r"data\.no_read_permission\(what=held-out data, file=.*a\.jsonl,"
    with pytest.raises(ValueError, match=refusal):
        discover(str(tmp_path / "a.jsonl"), what="held-out data")


def test_what_is_not_there_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"data\.path_not_found.*meant=.*train\.jsonl"):
        discover(str(tmp_path / "trian.jsonl"))
    with pytest.raises(ValueError, match=r"data\.give_file_folder_or_dataset"):
        discover("nowhere")


def test_format_overrides_the_name_and_is_checked(tmp_path: Path) -> None:
    (tmp_path / "data.log").write_text('{"a": "1"}\n')
    unknown = (
        f"unknown_file_extension(path={tmp_path}/data.log, formats={', '.join(FORMATS.names())})"
    )
    with pytest.raises(ValueError, match=re.escape(unknown)):
        discover(str(tmp_path / "data.log"))
    (tmp_path / "page.log").write_text("<html>")
    with pytest.raises(
        ValueError, match=r"kind_web_page\(\), remedy=data\.give_intended_file\(\)\)"
    ):
        discover(str(tmp_path / "page.log"))
    assert discover(str(tmp_path / "data.log"), "jsonl")[0].format == "jsonl"
    with pytest.raises(ValueError, match=r"data\.unknown_format.*name=jsnl,.*\(meant=jsonl\)"):
        discover(str(tmp_path / "data.log"), "jsnl")


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.json", '{"a": 1}\n{"a": 2}\n', "jsonl"),
        ("b.jsonl", '[{"a": 1}]', "json"),
        ("c.jsonl", '[1, 2]\n{"a": 1}\n', "jsonl"),  # a bad row, not a document
    ],
)
def test_json_under_the_wrong_name_is_what_it_is(
    tmp_path: Path, name: str, content: str, kind: str
) -> None:
    (tmp_path / name).write_text(content)
    assert one_file(tmp_path / name).format == kind


def test_a_plugin_format_is_used_by_its_ending(tmp_path: Path) -> None:
    def read_pairs(path: Path) -> Any:
        for line in path.read_text().splitlines():
            question, _, answer = line.partition(" -> ")
            yield {"question": question, "answer": answer} if answer else "not a row"

    (tmp_path / "a.arrows").write_text("1+1 -> 2\noops\n2+2 -> 4\n")
    register_format("arrows", read_pairs)
    try:
        found = list(one_file(tmp_path / "a.arrows").rows())
        kind = "data.format_returned_no_row(kind=text)"
        assert found[1] == BadRow("a.arrows", 2, reasons.WRONG_TYPE, kind, "not a row", 1)
        assert found[2] == Row({"question": "2+2", "answer": "4"}, "a.arrows", 3, 2)
        assert one_file(tmp_path / "a.arrows").has_header is False
        assert list(one_file(tmp_path / "a.arrows").rows(Start(1, 2))) == found[1:]
        with pytest.raises(ValueError, match=r"core\.plugin_name_taken"):
            register_format("arrows", lambda path: [])
    finally:
        FORMATS.unregister("arrows")
    with pytest.raises(ValueError, match=r"data\.format_name_taken"):
        register_format("csv", read_pairs)
    with pytest.raises(ValueError, match=r"data\.unknown_file_extension"):
        discover(str(tmp_path / "a.arrows"))


def test_splits_of_saved_data_sets(tmp_path: Path) -> None:
    train, test = datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS[:1])
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "both"))
    assert len(list(discover(str(tmp_path / "both"))[0].rows())) == 3
    assert len(list(discover(f"{tmp_path / 'both'}@test")[0].rows())) == 1
    with pytest.raises(ValueError, match=r"data\.unknown_split.*split=dev"):
        list(discover(f"{tmp_path / 'both'}@dev")[0].rows())
    train.save_to_disk(str(tmp_path / "one"))
    with pytest.raises(ValueError, match=r"data\.dataset_without_splits"):
        list(discover(f"{tmp_path / 'one'}@test")[0].rows())


def test_the_hub_loader_reads_what_load_dataset_reads(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    write_jsonl(folder / "train.jsonl")
    loaded = load_huggingface("owner/name@train[:2]")
    assert [dict(row) for row in loaded] == ROWS[:2]


def test_a_name_that_the_hub_does_not_have_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"data\.hub_dataset_not_found"):
        discover("no-such-owner/nothing")


def test_content_hash_does_not_depend_on_the_place(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(tmp_path / name)
    first, second = one_file(tmp_path / "a.jsonl"), one_file(tmp_path / "b.jsonl")
    assert first.sha256() == second.sha256()
    with second.path.open("a") as file:
        file.write(" ")
    assert first.sha256() != second.sha256()
    dataset = datasets.Dataset.from_list(ROWS)
    dataset.save_to_disk(str(tmp_path / "x"))
    datasets.Dataset.from_list(ROWS[:2]).save_to_disk(str(tmp_path / "y"))
    assert one_file(tmp_path / "x").sha256() == one_file(tmp_path / "x").sha256()
    whole = one_file(tmp_path / "x").sha256()
    assert whole != one_file(tmp_path / "y").sha256()
    parts = sorted((tmp_path / "x").iterdir())
    for number, ordered in enumerate((parts, parts[::-1])):
        copied = tmp_path / f"copy{number}"
        copied.mkdir()
        for part in ordered:
            shutil.copy(part, copied)
        assert one_file(copied).sha256() == whole
    (copied / "dataset_info.json").write_text("{}")
    assert one_file(copied).sha256() != whole


def test_the_configuration_knows_the_formats_that_there_are() -> None:
    assert sorted(FORMATS.built_in) == sorted([*READERS, *plugins_of(FORMATS.group)])


def test_held_out_files_that_lie_beside_the_data_are_part_of_its_hash(tmp_path: Path) -> None:
    """A finished run is the result of both."""
    for name in ("train", "validation"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    of_folder, of_file = (
        DataConfig(path=str(path)) for path in (tmp_path, tmp_path / "train.jsonl")
    )
    before = data_files_hash(of_folder), data_files_hash(of_file)
    assert None not in before
    assert (data_files_hash(of_folder), data_files_hash(of_file)) == before
    (tmp_path / "other").mkdir()
    held_out = tmp_path / "other/rows.jsonl"
    with_held_out = of_file.copy_with(eval_path=str(held_out))
    assert data_files_hash(with_held_out) == before[1]  # it is on another machine
    held_out.write_text(json.dumps(ROWS[0]))
    hashes = [before[1], data_files_hash(with_held_out)]
    held_out.write_text(json.dumps(ROWS[1]))
    assert len({*hashes, data_files_hash(with_held_out)}) == 3
    assert data_files_hash(DataConfig(path=str(tmp_path / "none"))) is None
    assert data_files_hash(DataConfig(eval_path=str(held_out))) is None
    (tmp_path / "validation.jsonl").write_text(json.dumps(ROWS[0]))
    assert data_files_hash(of_folder) != before[0]
    (tmp_path / "train.jsonl").write_text(json.dumps(ROWS[1]))
    assert data_files_hash(of_file) != before[1]


@pytest.mark.parametrize(
    ("lists", "held_out", "unread"),
    [
        (("train", "test"), "test", ()),
        (("train", "notes", "validation"), "validation", ("notes",)),
        (("test", "train"), "test", ()),
        (("data", "test"), "", ("test",)),
        (("items", "eval"), "", ("eval",)),
        (("data",), "", ()),
    ],
)
def test_a_list_is_held_out_beside_one_of_rows_to_train_on_alone(
    lists: tuple[str, ...], held_out: str, unread: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(dict.fromkeys(lists, ROWS)))
    found = lists_of(path)
    assert (found.held_out, found.unread) == (held_out, unread)


def jsonl(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(json.dumps(ROWS[0]) + "\n")


def test_files_beside_the_data_are_noted_with_their_use(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    jsonl(folder, "train.jsonl", "validation.jsonl", "dev.jsonl", "test.jsonl")
    train = discover(str(folder))
    beside = held_out_beside(train)
    assert [file.name for file in beside] == ["dev.jsonl", "validation.jsonl"]
    files = "data.files_as(files_are=data.files_are(files=dev.jsonl, validation.jsonl), role=data."
    tests = "data.test_files_unused(files_are=data.files_is(files=test.jsonl))"
    assert about_splits(train, []) == [f"{files}file_neither_trained_nor_held_out())", tests]
    for held_out in (beside, beside[:1]):
        assert about_splits(train, held_out) == [f"{files}file_held_out_by_name())", tests]
    measured = discover(str(folder / "test.jsonl"))
    assert about_splits(train, [*beside, *measured]) == [f"{files}file_held_out_by_name())"]
    assert about_splits(measured, []) == []


def test_lists_beside_the_rows_are_noted_with_their_use(tmp_path: Path) -> None:
    for name, key in (("a.json", "validation"), ("b.json", "test")):
        (tmp_path / name).write_text(json.dumps({"train": ROWS, key: ROWS[:1], "more": ROWS[:2]}))
    train = discover(str(tmp_path))
    beside = held_out_beside(train)
    assert [(file.name, file.split) for file in beside] == [
        ("a.json", "validation"),
        ("b.json", "test"),
    ]
    more = replace(train[0], note="x", held_out=(train[1],), test=(train[1],))
    assert held_out_beside([more]) == [train[1], beside[0]]
    found = [note.partition("(")[0] for note in about_splits([more], [])]
    assert found == [
        *("data.files_as", "data.split_of_file_unused", "data.rows_of_other_lists_unread"),
        "data.test_files_unused",
    ]
    assert [len(list(file.rows())) for file in beside] == [1, 1]
    splits = "(file=a.json, split=validation)", "(file=b.json, split=test)"
    lists = [
        f"data.rows_of_other_lists_unread(file={name}.json, lists=`more`)" for name in ("a", "b")
    ]
    for held_out, role in (([], "unused"), (beside, "held_out")):
        notes = [f"data.split_of_file_{role}{split}" for split in splits]
        assert about_splits(train, held_out) == [*notes, *lists]


@pytest.mark.parametrize(
    ("settings", "trained", "held_out"),
    [
        ({}, ["train.jsonl"], ["dev.jsonl"]),
        ({"validation_split": 0}, ["train.jsonl"], []),
        ({"eval_path": "other"}, ["train.jsonl"], ["dev.jsonl"]),
        ({"eval_path": "other/train.jsonl"}, ["train.jsonl"], ["train.jsonl"]),
        ({"eval_path": "tests"}, ["train.jsonl"], ["test.jsonl"]),  # of a folder with no other
        ({"path": "other/dev.jsonl"}, ["dev.jsonl"], []),
    ],
)
def test_held_out_files_are_those_given_or_those_beside(
    settings: dict[str, Any],
    trained: list[str],
    held_out: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "set", "train.jsonl", "dev.jsonl", "test.jsonl")
    jsonl(tmp_path / "other", "train.jsonl", "dev.jsonl")
    jsonl(tmp_path / "tests", "train.jsonl", "test.jsonl")
    found = files_of(DataConfig(**{"path": "set", **settings}))
    assert [[file.name for file in files] for files in found] == [trained, held_out]
    folder = Path(settings.get("eval_path", "set")).parts[0]
    assert {file.path.parent.name for file in found[1]} == ({folder} if held_out else set())


@pytest.mark.parametrize("name", ["none.jsonl", "a/b/c", "./none", "../none/x"])
def test_data_that_is_nowhere_is_refused_before_it_is_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.path_not_found"):
        refuse_missing_data(name)
    (tmp_path / "a").touch()
    for place in (str(tmp_path), f"{tmp_path}@test", str(tmp_path / "a"), "owner/name@train"):
        refuse_missing_data(place)


@pytest.mark.parametrize(
    ("cached", "is_online", "is_refused"),
    [(["owner___x"], False, False), (["other___name"], False, True), ([], True, False)],
)
def test_a_hub_dataset_needs_the_hub_or_the_cache(
    cached: list[str],
    is_online: bool,
    is_refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in cached:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sources, "data_sets_folder", lambda: tmp_path)
    monkeypatch.setattr(sources, "hub_is_reachable", lambda: is_online)
    if is_refused:
        with pytest.raises(ValueError, match=r"data\.hub_unreachable\(name=owner/name@test\)"):
            refuse_unreachable("owner/name@test")
    else:
        refuse_unreachable("owner/name@test")


@pytest.mark.parametrize(
    ("place", "is_name"),
    [
        ("owner/name", True),
        ("owner/name:part@train[:10%]", True),
        ("a.b-c/d_e", True),
        ("owner/name.jsonl", False),
        ("here/name", False),  # a folder
        ("owner", False),
        ("a/b/c", False),
        ("./name", False),
        ("../name", False),
        ("owner/na me", False),
    ],
)
def test_a_name_of_the_hub_is_no_path(
    place: str, is_name: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert may_be_on_the_hub(place) is is_name


@pytest.mark.parametrize(
    ("name", "content", "refusal"),
    [
        ("notes.cfg", b"text", None),
        ("rows.bin", b"PAR1", None),
        ("rows.bin", b"\x89HDF\r\n\x1a\n", None),
        ("rows.bin", sheet([["a"]]), None),
        ("a.csv", b"%PDF", r"kind=data\.kind_pdf\(\), remedy=data\.unpack_or_export\(\)\)"),
        ("a.rst", b"%PDF", r"kind=data\.kind_pdf\(\), remedy=data\.unpack_or_export\(\)\)"),
        ("a.rst", b"<html>", r"kind=data\.kind_web_page\(\), remedy=advice\)"),
        ("a.rst", b"", r"kind=data\.kind_empty\(\), remedy=advice\)"),
        ("a.rst", b"version https://git-lfs", r"kind=data\.kind_lfs_pointer\(\), remedy=advice\)"),
        ("a.own", b"%PDF", None),
    ],
)
def test_a_file_that_is_clearly_no_data_is_refused(
    name: str, content: bytes, refusal: str | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with FORMATS.registered("own", lambda path: []):
        if refusal is None:
            refuse_no_data(tmp_path / name, "advice")
        else:
            with pytest.raises(ValueError, match=rf"path_is_not_data\(path={name}, {refusal}"):
                refuse_no_data(tmp_path / name, "advice")


def test_tables_have_a_header_and_a_changed_file_another_stamp(tmp_path: Path) -> None:
    has_header = {"a.csv": True, "a.tsv": True, "a.jsonl": False, "a.txt": False, "a.json": False}
    for name, expected in has_header.items():
        (tmp_path / name).write_text("[1]" if name == "a.json" else "a")
        assert one_file(tmp_path / name).has_header is expected
    assert one_file(written(tmp_path, "data.parquet")).has_header is False
    file = one_file(tmp_path / "a.txt")
    before = file.stamp()
    assert before[0] == 1
    os.utime(file.path, (1, 1))
    assert file.stamp() == (1, 10**9)
    file.path.unlink()
    assert file.stamp() == (0, 0)


def test_an_archive_names_its_data_and_what_is_left_out(tmp_path: Path) -> None:
    content = {"x/rows.jsonl": as_lines(), "readme.md": b"", "notes.txt": b""}
    (tmp_path / "a.zip").write_bytes(zipped(content))
    others = "others=data.other_files_skipped(count=2)"
    assert one_file(tmp_path / "a.zip").note == (
        f"data.archive_member_read(archive=a.zip, member=rows.jsonl, {others})"
    )
