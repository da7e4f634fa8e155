"""Readers of line-based formats: JSON lines, CSV, TSV, plain text.

Each reader is a generator of `Row` and `BadRow` that can begin at any row's offset. A line that
cannot be read becomes a `BadRow`; reading continues with the next line.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Literal

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import parse_record
from infrastructure.core.messages import phrase
from infrastructure.data.readers.line_reader import (
    BEGIN,
    MAX_LINE_BYTES,
    UTF8_MARK,
    Line,
    Start,
    read_lines,
)
from infrastructure.data.readers.row_limits import has_too_many_values, too_large_words
from infrastructure.data.readers.rows import (
    BROKEN_CSV,
    BROKEN_JSON,
    INVALID_UTF8,
    LINE_TOO_LONG,
    WRONG_COLUMNS,
    WRONG_TYPE,
    BadRow,
    Row,
    excerpt,
    kind_of,
)
from infrastructure.data.readers.text_encoding import UTF8, likely_encoding, open_utf8

SNIFF_BYTES = 1 << 20
DELIMITERS = (",", ";", "\t", "|")
MAX_SHARE_UNEVEN = 0.05  # of lines with another number of fields than the first

# Stands for a carriage return inside a line, which is part of a cell and does not end a record.
# Text decoded from bytes never contains it.
LONE_RETURN = "\udc0d"


def read_jsonl(
    path: Path, name: str, start: Start = BEGIN, encoding: str = UTF8
) -> Iterator[Row | BadRow]:
    """Yield one JSON object per line; blank lines are ignored."""
    with open_utf8(path, encoding) as file:
        for line in read_lines(file, start):
            if line.data is None:
                yield too_long(name, line)
            elif not line.is_blank:
                yield _json_row(line.data.rstrip(b"\r\n"), name, line)


def _json_row(data: bytes, name: str, line: Line) -> Row | BadRow:
    def bad(reason: str, detail: str, encoding: str = "") -> BadRow:
        return BadRow(name, line.number, reason, detail, excerpt(data), line.offset, encoding)

    if has_too_many_values(data):
        return bad(LINE_TOO_LONG, too_large_words())
    try:
        value = parse_record(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return bad(
            INVALID_UTF8,
            phrase("data.byte_of_line", position=error.start + 1),
            likely_encoding(data),
        )
    except json.JSONDecodeError as error:
        words = error.msg.removesuffix(" at")
        detail = phrase("data.json_error_at_column", error=words, column=error.colno)
        return bad(BROKEN_JSON, detail)
    except ValueError as error:  # nested too deep, a number too long, a duplicate key
        return bad(BROKEN_JSON, str(error))
    if not isinstance(value, dict):
        return bad(WRONG_TYPE, phrase("data.line_not_object", kind=kind_of(value)))
    return Row(value, name, line.number, line.offset)


def too_long(name: str, line: Line) -> BadRow:
    """Return the `BadRow` for a line that is too long for memory."""
    detail = phrase("data.row_too_long", max_mib=MAX_LINE_BYTES >> 20)
    return BadRow(name, line.number, LINE_TOO_LONG, detail, "", line.offset)


class _Records:
    """A source of lines for a `csv.reader` that tracks where the next record begins.

    Attributes:
        held: the lines of the current record so far.
        is_plain: True if these lines are ASCII without NUL, with carriage returns only at line
            ends.
    """

    def __init__(self, lines: Iterator[Line], name: str) -> None:
        self.lines = lines
        self.name = name
        self.next = self.begin = BEGIN
        self.held: list[str] = []
        self.is_plain = True

    def __iter__(self) -> Iterator[str]:
        """Yield the lines of the file, while `begin` is the position of the current record.

        Raises:
            ValueError: a line, or a record of many lines, is too long for memory.
        """
        for line in self.lines:
            if line.end - self.begin.offset > MAX_LINE_BYTES and line.offset > self.begin.offset:
                raise InputError(_never_closed(self.name, self.begin))
            if line.data is None:
                raise InputError(
                    "data.table_line_too_long",
                    file=self.name,
                    line=line.number,
                    max_mib=MAX_LINE_BYTES >> 20,
                )
            self.next = Start(line.end, line.number + 1)
            if b"\x00" in line.data or not line.data.isascii():
                self.is_plain = False
            text = line.data.decode("utf-8", "surrogateescape")
            self.held.append(text)
            body = text.rstrip("\r\n")
            if "\r" in body:
                self.is_plain = False
                yield body.replace("\r", LONE_RETURN) + text[len(body) :]
            else:
                yield text

    def start_record(self) -> None:
        """Treat the next line as the first one of a record."""
        self.begin = self.next
        self.held.clear()
        self.is_plain = True


def read_csv(
    path: Path,
    name: str,
    start: Start = BEGIN,
    encoding: str = UTF8,
    delimiter: str | None = None,
) -> Iterator[Row | BadRow]:
    """Yield the rows of a file of separated values with a header line.

    Args:
        delimiter: the separator; the first MiB decides whether quotes are ordinary characters.
            None: a comma, or if only `;`, tab or `|` splits the header line, this character.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    with open_utf8(path, encoding) as file:
        header = _Records(read_lines(file), name)
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
        if delimiter and _quotes_are_text(file, name, delimiter):
            quoting = csv.QUOTE_NONE
        delimiter = delimiter or _delimiter_of(next(read_lines(file), None))
        try:
            columns = next(
                csv.reader(header, delimiter=delimiter, quoting=quoting, strict=True), []
            )
        except csv.Error as error:
            raise InputError("data.header_line_broken", file=name, reason=error) from error
        columns = [column.replace(LONE_RETURN, "\r") for column in columns]
        _check_columns(columns, name)
        table = _Table(path, name, encoding, delimiter, columns)
        records = _Records(read_lines(file, max(start, header.next)), name)
        records.next = max(start, header.next)
        reader = csv.reader(records, delimiter=delimiter, quoting=quoting, strict=True)
        while True:
            records.start_record()
            row = _next_record(reader, records, table)
            if row is None:
                return
            if row is not BLANK:
                yield row
            if isinstance(row, BadRow) and row.reason in (BROKEN_CSV, WRONG_COLUMNS):
                for _ in range(table.num_rows_in(records.held) - 1):
                    yield row  # one record consumed the lines of this many rows


read_tsv = partial(read_csv, delimiter="\t")

BLANK = Row({}, "", 0)


@dataclass(frozen=True)
class _Table:
    """A file of delimited values, with detection of rows that a stray quote has joined.

    A quote that opens a field by mistake swallows whole lines, up to the next quote that can close
    the field. Rows count as joined if each of these lines would be a row by itself. The lines of a
    real answer hardly ever would, unless the answer contains a table. If commas separate the
    fields, and other records really span several lines, no record counts as joined.
    """

    path: Path
    name: str
    encoding: str
    delimiter: str
    columns: list[str]

    def num_rows_in(self, lines: Sequence[str]) -> int:
        """Return how many of these lines would be complete rows if quotes were ignored."""
        return sum(map(self._is_row, lines))

    def _is_row(self, line: str) -> bool:
        fields = line.rstrip("\r\n").split(self.delimiter)
        if len(fields) != len(self.columns) or not (fields[0] and fields[-1]):
            return False
        is_sentence = any(field.startswith(" ") for field in fields[1:])
        return not is_sentence or self.columns[1].startswith(" ")

    def _are_rows(self, lines: Sequence[str]) -> bool:
        return len(self.columns) > 1 and all(map(self._is_row, lines))

    def is_joined(self, lines: Sequence[str]) -> bool:
        """Return whether the lines of a record are several rows that a stray quote joined."""
        return self._are_rows(lines) and (self.delimiter != "," or not self._has_long_records)

    @cached_property
    def _has_long_records(self) -> bool:
        """True if, among the first records of several lines, more are genuine than joined by a
        stray quote.
        """
        with open_utf8(self.path, self.encoding) as file:
            records = _Records(read_lines(file), self.name)
            reader = csv.reader(records, delimiter=self.delimiter)
            balance = 0
            try:
                while records.begin.offset < SNIFF_BYTES:
                    records.start_record()
                    if next(reader, None) is None:
                        break
                    if len(records.held) > 1:
                        balance += -1 if self._are_rows(records.held) else 1
            except (csv.Error, ValueError):
                pass
        return balance > 0


def _next_record(
    reader: Iterator[list[str]], records: _Records, table: _Table
) -> Row | BadRow | None:
    name, at = table.name, records.begin
    try:
        fields = next(reader, None)
    except csv.Error as error:
        if "unexpected end of data" in str(error) or "field limit" in str(error):
            raise InputError(_never_closed(name, at)) from error
        detail = f"{error}{_up_to(records)}"
        return BadRow(name, at.line, BROKEN_CSV, detail, excerpt(records.held[0]), at.offset)
    if fields is None:
        return None
    if not fields:
        return BLANK
    if not records.is_plain:
        fields = [field.replace(LONE_RETURN, "\r") for field in fields]
    if len(records.held) > 1 and table.is_joined(records.held):
        detail = phrase(
            "data.quote_spans_rows", line=records.next.line - 1, num_lines=len(records.held)
        )
        shown = excerpt(records.held[0])
        return BadRow(
            name,
            at.line,
            BROKEN_CSV,
            detail,
            shown,
            at.offset,
            advice=phrase("data.fix_spanning_quote"),
        )
    if len(fields) != len(table.columns):
        detail = phrase(
            "data.field_count_differs",
            num_fields=len(fields),
            num_columns=len(table.columns),
            extent=_up_to(records),
        )
        return BadRow(name, at.line, WRONG_COLUMNS, detail, excerpt(fields), at.offset)
    if [fields[0].removeprefix("\ufeff"), *fields[1:]] == table.columns:
        detail = phrase("data.header_repeated")
        return BadRow(name, at.line, BROKEN_CSV, detail, excerpt(fields), at.offset)
    values = dict(zip(table.columns, fields, strict=True))
    if not records.is_plain:
        if any(has_surrogates(field) for field in fields):
            printable = [field.encode("utf-8", "replace").decode() for field in fields]
            likely, shown = likely_encoding(_bytes_of(fields)), excerpt(printable)
            return BadRow(name, at.line, INVALID_UTF8, "", shown, at.offset, likely)
        if any("\0" in field for field in fields):
            return BadRow(
                name, at.line, BROKEN_CSV, phrase("data.nul_byte"), excerpt(fields), at.offset
            )
    return Row(values, name, at.line, at.offset)


def _up_to(records: _Records) -> str:
    """Describe where a record of several lines ends; return "" for a record of one line."""
    if not records.held[1:]:
        return ""
    return phrase("data.record_ends_on_line", line=records.next.line - 1)


def _never_closed(name: str, at: Start) -> str:
    return phrase("data.quote_never_closed", file=name, line=at.line)


def _quotes_are_text(file: BinaryIO, name: str, delimiter: str) -> bool:
    """Return whether quotes are ordinary characters in a file instead of delimiting fields.

    They are ordinary if nearly all of the first lines are rows when quotes are ignored, and if
    interpreting the quotes breaks more records than it correctly reads.
    """
    first = takewhile(lambda line: line.offset < SNIFF_BYTES, read_lines(file))
    lines = [line for line in first if not line.is_blank]
    counts = [(line.data or b"").count(delimiter.encode()) for line in lines]
    if MAX_SHARE_UNEVEN * len(counts) < len(counts) - counts.count((counts or [0])[0]):
        return False
    records, balance = _Records(iter(lines), name), 0
    reader = csv.reader(records, delimiter=delimiter, strict=True)
    opens = re.compile(rf'(?:^|{re.escape(delimiter)})"', re.MULTILINE)
    while True:
        records.start_record()
        try:
            if next(reader, None) is None:
                return balance > 0
        except csv.Error:
            balance += 1
        else:
            balance -= opens.search("".join(records.held)) is not None


def _delimiter_of(header: Line | None) -> str:
    """Return the character that separates the fields of the header line; a comma if no
    other does.
    """
    text = (header.data if header and header.data else b"").decode("utf-8", "replace")
    text = text.rstrip("\r\n").replace("\r", " ")
    fields = ((d, next(csv.reader([text], delimiter=d), [])) for d in DELIMITERS)
    return next((delimiter for delimiter, parts in fields if len(parts) > 1), ",")


def _check_columns(columns: list[str], name: str) -> None:
    if not any(columns):
        raise InputError("data.table_without_header", file=name)
    if any(map(has_surrogates, columns)):
        header = BadRow(name, 1, INVALID_UTF8, encoding=likely_encoding(_bytes_of(columns)))
        raise InputError("data.header_not_utf8", header=header, remedy=header.remedy)
    if columns[0].lower().startswith("sep="):
        raise InputError("data.excel_separator_line", file=name, line=columns[0])
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise InputError("data.table_column_twice", file=name, column=repeated[0])


def has_surrogates(text: str) -> bool:
    """Return whether a text has surrogates (undecodable bytes, half a pair), which UTF-8 cannot
    encode.
    """
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _bytes_of(fields: list[str]) -> bytes:
    return b" ".join(field.encode("utf-8", "surrogateescape") for field in fields)


def read_text(
    path: Path, name: str, start: Start = BEGIN, encoding: str = UTF8
) -> Iterator[Row | BadRow]:
    """Yield the examples of a plain text file as rows with the column "text".

    If the first MiB of the text has blank lines, each paragraph is an example. Otherwise, each line
    is an example.
    """
    with open_utf8(path, encoding) as file:
        by_line = not has_paragraphs(file)
        block: list[Line] = []
        is_too_long = False
        for line in read_lines(file, start):
            if block and (by_line or line.is_blank or line.data is None):
                yield _text_row(block, name, is_too_long)
                block, is_too_long = [], False
            if line.data is None:
                yield too_long(name, line)
            elif block and line.end - block[0].offset > MAX_LINE_BYTES:
                block, is_too_long = block[:1], True  # the rest of the paragraph is not held
            elif not line.is_blank:
                block.append(line)
        if block:
            yield _text_row(block, name, is_too_long)


def has_paragraphs(file: BinaryIO) -> bool:
    """Return whether there is a blank line between two lines of text in the first MiB."""
    file.seek(0)
    head = file.read(SNIFF_BYTES + 1).removeprefix(UTF8_MARK).strip()
    return any(not line.strip() for line in head.split(b"\n"))


def _text_row(block: list[Line], name: str, is_too_long: bool) -> Row | BadRow:
    first = block[0]
    if is_too_long:
        return too_long(name, first)
    data = b"".join(line.data or b"" for line in block)
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        detail, likely = (
            phrase("data.byte_of_passage", position=error.start + 1),
            likely_encoding(data),
        )
        return BadRow(name, first.number, INVALID_UTF8, detail, excerpt(data), first.offset, likely)
    if "\0" in text:
        return BadRow(
            name,
            first.number,
            WRONG_TYPE,
            phrase("data.nul_byte"),
            excerpt(text),
            first.offset,
        )
    return Row({"text": text}, name, first.number, first.offset)
