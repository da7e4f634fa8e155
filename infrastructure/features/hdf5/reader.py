"""Reader of HDF5 files: one 1-D dataset per column, all of the same length."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.optional import require
from infrastructure.data.readers.file_type import BinaryFormat
from infrastructure.data.readers.line_reader import BEGIN, Start
from infrastructure.data.readers.row_limits import MAX_ROW_BYTES, too_large_words
from infrastructure.data.readers.rows import INVALID_UTF8, LINE_TOO_LONG, BadRow, Label, Row

if TYPE_CHECKING:
    from h5py import Dataset, File

READ_ROWS, LEAST_READ_ROWS = 256, 4
MAX_PIECE_BYTES = 128 << 20


class Hdf5(BinaryFormat):
    """HDF5 files. `line` and `offset` count records."""

    title = "HDF5"
    magic = b"\x89HDF\r\n\x1a\n"
    extensions = (".h5", ".hdf5")

    def __call__(self, path: Path, name: str, start: Start = BEGIN) -> Iterator[Row | BadRow]:
        h5py = require("h5py", "hdf5.reading")
        try:
            with h5py.File(path, "r") as file:
                columns = _columns(file, name, h5py)
                length = len(next(iter(columns.values())))
                num_rows = _rows_at_once(columns, path.stat().st_size, name)
                named = {key: _names(column, h5py) for key, column in columns.items()}
                for first in range(start.offset, length, num_rows):
                    slices = {k: column[first : first + num_rows] for k, column in columns.items()}
                    for index, parts in enumerate(zip(*slices.values(), strict=True), first):
                        fields = {
                            key: named[key].get(part, part) if named[key] else part
                            for key, part in zip(slices, parts, strict=True)
                        }
                        yield _row(fields, name, index)
        except (OSError, KeyError, RuntimeError, TypeError, MemoryError) as error:
            raise InputError("hdf5.damaged", file=name, reason=error) from error


def _rows_at_once(columns: dict[str, "Dataset"], file_bytes: int, name: str) -> int:
    """Return how many rows may be read at once.

    Rows may be much larger than the file, because unwritten parts are read as zeros, and many rows
    may refer to one text.

    Raises:
        ValueError: a single field, or the chunk that it is compressed in, is too large.
    """
    row_bytes = 0
    for key, column in columns.items():
        field_bytes = column.dtype.itemsize
        piece_bytes = field_bytes * (column.chunks or (1,))[0]
        if field_bytes > MAX_ROW_BYTES or piece_bytes > MAX_PIECE_BYTES:
            raise InputError(
                "hdf5.field_too_large",
                file=name,
                column=key,
                field_bytes=field_bytes,
                chunk_bytes=piece_bytes,
            )
        is_reference = column.dtype.kind == "O"  # to a text or a list of any length
        row_bytes += min(file_bytes, MAX_PIECE_BYTES) if is_reference else field_bytes
    return max(LEAST_READ_ROWS, min(READ_ROWS, MAX_PIECE_BYTES // max(1, row_bytes)))


def _columns(file: "File", name: str, h5py: ModuleType) -> dict[str, "Dataset"]:
    columns: dict[str, Dataset] = {
        key: item for key, item in file.items() if isinstance(item, h5py.Dataset)
    }
    if not columns:
        raise InputError("hdf5.without_columns", file=name, names=list(file))
    for key, column in columns.items():
        if column.ndim != 1:
            raise InputError(
                "hdf5.column_not_flat", file=name, column=key, num_dimensions=column.ndim
            )
        if column.external or column.is_virtual:
            raise InputError("hdf5.column_external", file=name, column=key)
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError("hdf5.column_lengths_differ", file=name, lengths=lengths)
    return columns


def _names(column: "Dataset", h5py: ModuleType) -> dict[object, Label]:
    """Return number → label for a column that stores labels as numbers; {} for other columns."""
    numbers: dict[str, int] = h5py.check_enum_dtype(column.dtype) or {}
    return {number: Label(name, number) for name, number in numbers.items()}


def _row(fields: Mapping[str, object], name: str, index: int) -> Row | BadRow:
    if sum(len(field) for field in fields.values() if isinstance(field, bytes)) > MAX_ROW_BYTES:
        return BadRow(name, index + 1, LINE_TOO_LONG, too_large_words(), offset=index)
    try:
        values = {key: _plain(field) for key, field in fields.items()}
    except UnicodeDecodeError:
        return BadRow(name, index + 1, INVALID_UTF8, offset=index)
    return Row(values, name, index + 1, index)


def _plain(field: object) -> object:
    if isinstance(field, bytes):
        return field.decode("utf-8")
    return field.item() if isinstance(field, np.generic) else field


HDF5 = Hdf5()
