"""Refuse a file that is no table of one value per row and column, before it is read."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.row_limits import MAX_ROW_BYTES, too_large_words
from infrastructure.data.readers.rows import INVALID_UTF8, LINE_TOO_LONG, BadRow, Label, Row
from infrastructure.features.hdf5 import reader
from infrastructure.features.hdf5.reader import HDF5

REFUSED: list[tuple[Callable[[h5py.File], object], str]] = [
    (
        lambda file: file.create_dataset("text", (5,), f"S{MAX_ROW_BYTES + 1}"),
        f"field_too_large(file=a.h5, column=text, field_bytes={MAX_ROW_BYTES + 1}, "
        f"chunk_bytes={MAX_ROW_BYTES + 1})",
    ),
    (
        lambda file: file.create_dataset("text", (99,), "S4000000", chunks=(34,)),
        "field_too_large(file=a.h5, column=text, field_bytes=4000000, chunk_bytes=136000000)",
    ),
    (
        lambda file: file.create_dataset("text", (5,), "S2", external=[("secret", 0, 10)]),
        "column_external(file=a.h5, column=text)",
    ),
    (
        lambda file: file.create_virtual_dataset("text", h5py.VirtualLayout((2,), "i4")),
        "column_external(file=a.h5, column=text)",
    ),
    (
        lambda file: file.update({"text": h5py.SoftLink("/nowhere")}),
        "without_columns(file=a.h5, names=['text'])",
    ),
    (
        lambda file: file.update({"a": np.zeros(2), "b": np.zeros(3)}),
        "column_lengths_differ(file=a.h5, lengths={'a': 2, 'b': 3})",
    ),
    (
        lambda file: file.update({"n": np.zeros(2), "a": np.zeros((2, 2))}),
        "column_not_flat(file=a.h5, column=a, num_dimensions=2)",
    ),
    (lambda file: file.update({"a": np.float64(1)}), "column=a, num_dimensions=0)"),
]


@pytest.mark.parametrize(("fill", "refusal"), REFUSED)
def test_a_file_that_is_no_table_lies_elsewhere_or_is_too_wide_is_refused(
    tmp_path: Path, fill: Callable[[h5py.File], object], refusal: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        fill(file)
    with pytest.raises(ValueError, match=rf"hdf5\..*{re.escape(refusal)}"):
        list(HDF5(tmp_path / "a.h5", "a.h5"))


def test_numbers_are_plain(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"] = np.arange(600)
    found = [row.values["n"] for row in HDF5(tmp_path / "a.h5", "a.h5") if isinstance(row, Row)]
    assert found == list(range(600))
    assert type(found[0]) is int


@pytest.mark.parametrize(
    ("columns", "file_bytes", "num_rows"),
    [
        ([("i8", None)], 0, 256),
        ([("S16000000", None)], 0, 8),
        ([("S8000000", None), ("S8000000", 2)], 0, 8),
        ([("S262144", None), ("S262144", None)], 0, 256),
        ([("S262144", None), ("S262145", None)], 0, 255),
        ([(f"S{MAX_ROW_BYTES}", 8)], 0, 8),
        ([(f"S{MAX_ROW_BYTES}", None)] * 3, 0, 4),  # no fewer
        ([(h5py.string_dtype(), 99)], 1 << 20, 128),
        ([(h5py.string_dtype(), 99)] * 2, 1 << 20, 64),
        ([(h5py.vlen_dtype("i4"), 99)], 1 << 20, 128),
        ([(h5py.ref_dtype, None)], 1 << 20, 128),
        ([(h5py.string_dtype(), 99)], 1 << 40, 4),
        ([(h5py.string_dtype(), 99)], 0, 256),
    ],
)
def test_as_many_rows_are_read_at_once_as_fit_into_memory(
    tmp_path: Path, columns: list[tuple[Any, int | None]], file_bytes: int, num_rows: int
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = {
            f"c{n}": file.create_dataset(f"c{n}", (99,), kind, chunks=chunk and (chunk,))
            for n, (kind, chunk) in enumerate(columns)
        }
        assert reader._rows_at_once(made, file_bytes, "a.h5") == num_rows


def test_rows_begin_anywhere_and_bad_ones_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label is its name; a number without a name stays a number."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["text"] = np.array([b"ab", b"\xff", b"123456", b"1234567", b"ef"] * 2, "S7")
        file["more"] = np.array([b"1234"] * 10)
        kind = h5py.enum_dtype({"no": 0, "yes": 5}, basetype="i4")
        file.create_dataset("label", data=np.array([5, 0, 0, 0, 7] * 2, "i4"), dtype=kind)
        file.create_group("group")
    monkeypatch.setattr(reader, "MAX_ROW_BYTES", 10)
    monkeypatch.setattr(reader, "READ_ROWS", 4)
    expected: list[Row | BadRow] = []
    for n in (0, 5):
        expected += [
            Row({"label": "yes", "more": "1234", "text": "ab"}, "x", n + 1, n),
            BadRow("x", n + 2, INVALID_UTF8, offset=n + 1),
            Row({"label": "no", "more": "1234", "text": "123456"}, "x", n + 3, n + 2),
            BadRow("x", n + 4, LINE_TOO_LONG, too_large_words(), offset=n + 3),
            Row({"label": 7, "more": "1234", "text": "ef"}, "x", n + 5, n + 4),
        ]
    for start in (0, 1, 4, 9, 10):
        rows = list(HDF5(path, "x", Start(start, start + 1)))
        assert rows == expected[start:]
        labels = [row.values["label"] for row in rows if isinstance(row, Row)]
        numbers = [one.number for one in labels if isinstance(one, Label)]
        assert numbers == [{"yes": 5, "no": 0}[one] for one in labels if isinstance(one, str)]


def test_a_damaged_file_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99))
    with pytest.raises(ValueError, match=r"hdf5\.damaged\(file=x, reason=Unable to .*open file"):
        list(HDF5(tmp_path / "a.h5", "x"))
