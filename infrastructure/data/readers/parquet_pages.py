"""Size checks on a Parquet file, made from its page headers before anything is decoded.

Two kilobytes can decode to gigabytes: a long text stored once in a dictionary and referenced by
every row, a page of zeros, a list that one row repeats a billion times. The file's footer does not
show this, and the library allocates whatever size a page states. So the page headers are read first
(a few bytes per page, https://parquet.apache.org/docs/file-format/data-pages/). They determine how
many rows may be decoded at a time, or that the file is refused.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData, FileMetaData

MAX_ROWS = 256
MAX_PAGE_BYTES = 128 << 20
MAX_BATCH_BYTES = 128 << 20
MAX_ROW_GROUP_BYTES = 1 << 30  # for columns of lists, and for the pages that hold one row
HONEST_RATIO = 50  # times the size on disk: texts compress to about a tenth
MAX_NESTING = 50

HEADER_BYTES = 1 << 16
MAX_HEADER_BYTES = 1 << 24  # statistics contain values
LEAST_ROWS_HELD = 1024  # the library allocates space for this many, however few it decodes
LEVEL_BYTES = 16  # per value in a list: its levels and its index

# Values of the format's enumerations.
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
DELTA_BYTE_ARRAY = 7
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
TEXT = "BYTE_ARRAY"
DICTIONARY_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a column, as described by its header."""

    is_dictionary: bool
    size_bytes: int
    num_values: int
    encoding: int


@dataclass(frozen=True)
class Column:
    """The pages of one column in one row group.

    Attributes:
        is_in_list: True if a row may hold any number of the column's values.
        stays_in_dictionary: True if the column is decoded to indices into a dictionary, so that no
            text is copied.
        stored_bytes: size on disk.
    """

    path: str
    kind: str
    width: int
    is_in_list: bool
    stays_in_dictionary: bool
    stored_bytes: int
    pages: list[Page]

    @property
    def dictionary_bytes(self) -> int:
        return sum(page.size_bytes for page in self.pages if page.is_dictionary)

    @property
    def data_pages(self) -> list[Page]:
        return [page for page in self.pages if not page.is_dictionary]

    @property
    def largest_bytes(self) -> int:
        return max((page.size_bytes for page in self.pages), default=0)

    @property
    def repeats(self) -> bool:
        """True if decoding may copy a stored text into every row."""
        in_dictionary = self.dictionary_bytes > 0 and not self.stays_in_dictionary
        return in_dictionary or any(page.encoding == DELTA_BYTE_ARRAY for page in self.data_pages)

    def batch_bytes(self, num_rows: int) -> int:
        """Return the maximum memory that `num_rows` rows may take, including dictionary and current
        page.
        """
        opened = self.dictionary_bytes + self.largest_bytes
        if self.kind != TEXT:
            return opened + num_rows * self.width
        if self.repeats:
            return opened + num_rows * self.largest_bytes
        sizes = [page.size_bytes for page in self.data_pages]
        return opened + min(sum(sizes), (num_rows + 1) * max(sizes, default=0))

    def whole_bytes(self) -> int:
        """Return the decoded size of the whole column chunk, because one row may contain
        all of it.
        """
        num_values = sum(page.num_values for page in self.data_pages)
        total = self.dictionary_bytes + num_values * LEVEL_BYTES
        if self.kind != TEXT:
            return total + num_values * self.width
        if self.repeats:
            return total + num_values * self.largest_bytes
        return total + sum(page.size_bytes for page in self.data_pages)


def check_nesting(metadata: "FileMetaData", name: str) -> None:
    """Check that no column is nested too deeply for libraries, which process nesting by recursion.

    Raises:
        ValueError: a column is too deeply nested; the text names it.
    """
    for index in range(metadata.num_columns):
        path = metadata.schema.column(index).path
        if path.count(".") > MAX_NESTING:
            raise InputError(
                "data.parquet_nested_too_deep",
                file=name,
                column=path.partition(".")[0],
                max_nesting=MAX_NESTING,
            )


def texts_in_dictionaries(metadata: "FileMetaData") -> list[str]:
    """Return the text columns that can be decoded to indices into a dictionary.

    This is possible only for columns that are stored dictionary-encoded.
    """
    columns = []
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        chunks = [
            metadata.row_group(group).column(index) for group in range(metadata.num_row_groups)
        ]
        if (
            column.physical_type == TEXT
            and any(chunk.has_dictionary_page for chunk in chunks)
            and all(set(chunk.encodings) <= DICTIONARY_ENCODINGS for chunk in chunks)
        ):
            columns.append(column.path)
    return columns


def rows_at_once(
    file: BinaryIO,
    metadata: "FileMetaData",
    group: int,
    in_dictionaries: Collection[str],
    name: str,
) -> int:
    """Return how many rows of a row group may be decoded at a time.

    Args:
        file: the open file, at any position.
        in_dictionaries: the columns that are decoded to indices into a dictionary.
        name: name of the file in messages.

    Raises:
        ValueError: a page, a row or a list may be larger than memory, or a header is damaged.
    """
    columns = [
        _column(file, metadata, group, index, in_dictionaries, name)
        for index in range(metadata.num_columns)
    ]
    for column in columns:
        _check(column, name)
    flat = [column for column in columns if not column.is_in_list]
    num_rows = MAX_ROWS
    while num_rows > 1 and sum(c.batch_bytes(num_rows) for c in flat) > MAX_BATCH_BYTES:
        num_rows //= 2
    row_bytes = sum(column.batch_bytes(1) for column in flat)
    stored_bytes = sum(column.stored_bytes for column in flat)
    if row_bytes > max(MAX_ROW_GROUP_BYTES, HONEST_RATIO * stored_bytes):
        raise InputError(_too_large(name, phrase("data.parquet_row"), row_bytes))
    return num_rows


def _check(column: Column, name: str) -> None:
    """Raise ValueError if a page or a list may be larger than memory."""
    if column.largest_bytes > MAX_PAGE_BYTES:
        page = phrase("data.parquet_page", column=column.path)
        raise InputError(_too_large(name, page, column.largest_bytes))
    if column.width * LEAST_ROWS_HELD > MAX_BATCH_BYTES:
        value = phrase("data.parquet_value", column=column.path)
        raise InputError(_too_large(name, value, column.width))
    if not column.is_in_list:
        return
    most = max(MAX_ROW_GROUP_BYTES, HONEST_RATIO * column.stored_bytes)
    if column.repeats:  # its decoded size is unknown
        most = MAX_ROW_GROUP_BYTES
    if column.whole_bytes() > most:
        whole = phrase("data.parquet_column", column=column.path)
        raise InputError(_too_large(name, whole, column.whole_bytes()))


def _too_large(name: str, what: str, size_bytes: int) -> str:
    return phrase("data.parquet_too_large", file=name, part=what, mib=size_bytes / 2**20)


def _column(
    file: BinaryIO,
    metadata: "FileMetaData",
    group: int,
    index: int,
    in_dictionaries: Collection[str],
    name: str,
) -> Column:
    chunk, schema = metadata.row_group(group).column(index), metadata.schema.column(index)
    try:
        pages = list(_pages(file, chunk))
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise InputError("data.parquet_damaged", file=name, reason=error) from error
    width = WIDTHS.get(schema.physical_type, schema.length or 0)
    return Column(
        schema.path,
        schema.physical_type,
        width,
        schema.max_repetition_level > 0,
        schema.path in in_dictionaries,
        chunk.total_compressed_size,
        pages,
    )


def _pages(file: BinaryIO, chunk: "ColumnChunkMetaData") -> Iterator[Page]:
    """Yield the pages of a column chunk in order, up to the point where the library stops
    reading.
    """
    offset = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < offset:
        offset = chunk.dictionary_page_offset
    end = offset + chunk.total_compressed_size
    remaining = chunk.num_values
    while offset < end and remaining > 0:
        header, header_bytes = _header(file, offset)
        stored_bytes = header[3]
        offset += header_bytes + stored_bytes
        if stored_bytes < 0 or header[2] < 0:
            raise InputError("data.parquet_negative_page_size")
        if header[1] in (DATA_PAGE, DATA_PAGE_V2):
            inner = header[5] if header[1] == DATA_PAGE else header[8]
            encoding = inner[2] if header[1] == DATA_PAGE else inner[4]
            remaining -= inner[1]
            if inner[1] < 0:
                raise InputError("data.parquet_negative_value_count")
            yield Page(False, header[2], inner[1], encoding)
        elif header[1] == DICTIONARY_PAGE:
            yield Page(True, header[2], header[7][1], header[7][2])


def _header(file: BinaryIO, offset: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the page header at `offset`, by number, and the header's length."""
    length = HEADER_BYTES
    while True:
        file.seek(offset)
        data = file.read(length)
        try:
            reader = _Thrift(data)
            return reader.struct(), reader.position
        except IndexError:
            if len(data) < length or length >= MAX_HEADER_BYTES:
                raise InputError("data.parquet_header_truncated") from None
            length *= 16


class _Thrift:
    """A reader of structs in Thrift's compact protocol.

    https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
    """

    MAX_DEPTH = 8

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Parse a struct; return its numbers, booleans and structs by field number."""
        fields: dict[int, object] = {}
        number = 0
        while byte := self._byte():
            delta, kind = byte >> 4, byte & 15
            number = number + delta if delta else self._signed()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > self.MAX_DEPTH:
            raise InputError("data.parquet_header_too_deep")
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._unsigned())
        if kind == 12:
            return self.struct(depth + 1)
        raise InputError("data.parquet_header_unknown_field")

    def _byte(self) -> int:
        self.position += 1
        return self.data[self.position - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise InputError("data.parquet_header_number_too_long")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, length: int) -> None:
        self.position += length
        if self.position > len(self.data):
            raise IndexError
