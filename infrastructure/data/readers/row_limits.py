"""The maximum size of a row, for all formats, checked before the row is built.

Some formats are so compact that a file of kilobytes may hold rows of gigabytes. No real example is
that long, and such a row must not fill the memory of a run.
"""

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.store.stream_index import estimated_bytes

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch

MAX_ROW_BYTES = 16 << 20
MAX_ROW_VALUES = 1 << 22  # an empty list takes 3 bytes in JSON and 64 in memory

AnyRow = TypeVar("AnyRow", bound=Row | BadRow)


def too_large_words(max_bytes: int = MAX_ROW_BYTES) -> str:
    """Return the message about a row that is too large."""
    return phrase("data.row_too_large", max_mib=max_bytes >> 20, max_millions=MAX_ROW_VALUES >> 20)


def in_chunks(rows: Iterable[AnyRow], max_rows: int) -> Iterator[list[AnyRow]]:
    """Yield the rows in lists of at most `max_rows`, or of fewer if the rows are large."""
    chunk: list[AnyRow] = []
    held_bytes = 0
    for row in rows:
        chunk.append(row)
        held_bytes += estimated_bytes(row.values) if isinstance(row, Row) else 0
        if len(chunk) == max_rows or held_bytes >= MAX_ROW_BYTES:
            yield chunk
            chunk, held_bytes = [], 0
    if chunk:
        yield chunk


def has_too_many_values(text: str | bytes) -> bool:
    """Return whether JSON text may hold more values than a row may have.

    The text is not parsed: characters with which a value can begin are counted.
    """
    if len(text) < MAX_ROW_VALUES:
        return False
    if isinstance(text, bytes):
        return sum(text.count(sign) for sign in (b",", b"[", b"{")) > MAX_ROW_VALUES
    return sum(text.count(sign) for sign in (",", "[", "{")) > MAX_ROW_VALUES


def fits_a_row(batch: "RecordBatch") -> bool:
    """Return whether an Arrow batch as a whole does not exceed the size limit of a single row."""
    extents = [_extent(column) for column in batch.columns]
    num_bytes, num_values = (
        (sum(part) for part in zip(*extents, strict=True)) if extents else (0, 0)
    )
    return num_bytes <= MAX_ROW_BYTES and num_values <= MAX_ROW_VALUES


def _extent(array: "Array") -> tuple[int, int]:
    """Return (bytes, number of values) of an Arrow array after expanding dictionaries and runs."""
    arrow = require("pyarrow", "data.read_tables")
    compute = require("pyarrow.compute", "data.read_tables")
    kinds, kind = arrow.types, array.type
    if isinstance(array, arrow.ExtensionArray):
        return _extent(array.storage)
    if kinds.is_dictionary(kind):
        inner_bytes, _ = _extent(array.dictionary)
        if inner_bytes * len(array) <= MAX_ROW_BYTES:  # without checking each value
            return inner_bytes * len(array), len(array)
        if not _is_text(kinds, kind.value_type):
            return inner_bytes * len(array), len(array)
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return int(compute.sum(lengths).as_py() or 0), len(array)
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return _extent(array.cast(arrow.large_binary()))
    if _is_text(kinds, kind):
        return int(compute.sum(compute.binary_length(array)).as_py() or 0), len(array)
    if kinds.is_struct(kind):
        parts = [_extent(part) for part in array.flatten()]
        return sum(size for size, _ in parts), len(array) + sum(number for _, number in parts)
    if kinds.is_map(kind):
        offsets = array.offsets
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        parts = [_extent(part.slice(first, last - first)) for part in (array.keys, array.items)]
        return sum(size for size, _ in parts), len(array) + sum(number for _, number in parts)
    if hasattr(array, "flatten"):  # lists of all kinds
        size, number = _extent(array.flatten())
        return size, len(array) + number
    return max(array.nbytes, 8 * len(array)), len(array)


def _is_text(kinds: ModuleType, kind: "DataType") -> bool:
    return bool(
        kinds.is_string(kind)
        or kinds.is_large_string(kind)
        or kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
    )
