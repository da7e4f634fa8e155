"""Readers of line-based formats: JSON lines, CSV, TSV, plain text.

Each is an iterator of `Row` and `BadRow` that can begin at any row's offset. A line that cannot be
read is a `BadRow`; reading goes on with the next one.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from infrastructure.core.json_text import parse_json
from infrastructure.training.data.readers.line_reader import (
    BEGIN,
    MAX_LINE_BYTES,
    Line,
    Start,
    read_lines,
)
from infrastructure.training.data.readers.row_limits import has_too_many_values, too_large_words
from infrastructure.training.data.readers.rows import (
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
from infrastructure.training.data.readers.text_encoding import UTF8, likely_encoding, open_utf8

SNIFF_BYTES = 1 << 20
DELIMITERS = (",", ";", "\t", "|")


def read_jsonl(
    path: Path, name: str, start: Start = BEGIN, encoding: str = UTF8
) -> Iterator[Row | BadRow]:
    """One JSON object a line; blank lines are no rows."""
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
        value = parse_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return bad(INVALID_UTF8, f"byte {error.start + 1} of the line", likely_encoding(data))
    except json.JSONDecodeError as error:
        return bad(BROKEN_JSON, f"{error.msg.removesuffix(' at')} at column {error.colno}")
    except ValueError as error:  # nested too deep, a number too long
        return bad(BROKEN_JSON, str(error))
    if not isinstance(value, dict):
        return bad(WRONG_TYPE, f"the line is {kind_of(value)}, not an object")
    return Row(value, name, line.number, line.offset)


def too_long(name: str, line: Line) -> BadRow:
    """The bad row for a line that was too long to be held."""
    detail = f"more than {MAX_LINE_BYTES >> 20} MiB"
    return BadRow(name, line.number, LINE_TOO_LONG, detail, "", line.offset)


def read_csv(
    path: Path, name: str, start: Start = BEGIN, encoding: str = UTF8
) -> Iterator[Row | BadRow]:
    """Comma-separated values under a header line; `;`, tab or `|` where the header shows it."""
    return _read_delimited(path, name, start, encoding, None)


def read_tsv(
    path: Path, name: str, start: Start = BEGIN, encoding: str = UTF8
) -> Iterator[Row | BadRow]:
    """Tab-separated values under a header line."""
    return _read_delimited(path, name, start, encoding, "\t")


class _Records:
    """Feeds a `csv.reader` and knows where the next record begins."""

    def __init__(self, lines: Iterator[Line], name: str) -> None:
        self.lines = lines
        self.name = name
        self.next = self.begin = BEGIN

    def __iter__(self) -> Iterator[str]:
        """Its lines; `begin` says where a record begins.

        Raises:
            ValueError: a line, or a record of many lines, is too long to be held.
        """
        for line in self.lines:
            if line.end - self.begin.offset > MAX_LINE_BYTES and line.offset > self.begin.offset:
                raise ValueError(_never_closed(self.name, self.begin))
            if line.data is None:
                raise ValueError(
                    f"{self.name}:{line.number}: the line is longer than {MAX_LINE_BYTES >> 20} MiB"
                    "; is this a table with a header line?"
                )
            self.next = Start(line.end, line.number + 1)
            yield line.data.decode("utf-8", "surrogateescape")


def _read_delimited(
    path: Path, name: str, start: Start, encoding: str, delimiter: str | None
) -> Iterator[Row | BadRow]:
    csv.field_size_limit(MAX_LINE_BYTES)
    with open_utf8(path, encoding) as file:
        header = _Records(read_lines(file), name)
        delimiter = delimiter or _delimiter_of(next(read_lines(file), None))
        columns = next(csv.reader(header, delimiter=delimiter, strict=True), [])
        _check_columns(columns, name)
        records = _Records(read_lines(file, max(start, header.next)), name)
        records.next = max(start, header.next)
        reader = csv.reader(records, delimiter=delimiter, strict=True)
        while True:
            begin = records.begin = records.next
            row = _next_record(reader, columns, name, begin)
            if row is None:
                return
            if row is not BLANK:
                yield row


BLANK = Row({}, "", 0)


def _next_record(
    reader: Iterator[list[str]], columns: list[str], name: str, at: Start
) -> Row | BadRow | None:
    try:
        fields = next(reader, None)
    except csv.Error as error:
        if "unexpected end of data" in str(error) or "field limit" in str(error):
            raise ValueError(_never_closed(name, at)) from error
        return BadRow(name, at.line, BROKEN_CSV, str(error), "", at.offset)
    if fields is None:
        return None
    if not fields:
        return BLANK
    if len(fields) != len(columns):
        detail = f"{len(fields)} fields under {len(columns)} columns"
        return BadRow(name, at.line, WRONG_COLUMNS, detail, excerpt(fields), at.offset)
    values = dict(zip(columns, fields, strict=True))
    if any(has_surrogates(field) for field in fields):
        likely, shown = likely_encoding(_bytes_of(fields)), excerpt(_printable(fields))
        return BadRow(name, at.line, INVALID_UTF8, "", shown, at.offset, likely)
    return Row(values, name, at.line, at.offset)


def _never_closed(name: str, at: Start) -> str:
    return (
        f"{name}:{at.line}: a quote opens here and is never closed, so the rest of the file"
        " cannot be read: close or double it"
    )


def _delimiter_of(header: Line | None) -> str:
    """The separator that splits the header line; a comma wherever it does."""
    text = (header.data if header and header.data else b"").decode("utf-8", "replace")
    counts = [
        (len(next(csv.reader([text], delimiter=delimiter), [])) > 1, delimiter)
        for delimiter in DELIMITERS
    ]
    return next((delimiter for splits, delimiter in counts if splits), ",")


def _check_columns(columns: list[str], name: str) -> None:
    if not any(columns):
        raise ValueError(f"{name}: the table has no header line that names its columns: add one")
    if any(map(has_surrogates, columns)):
        header = BadRow(name, 1, INVALID_UTF8, encoding=likely_encoding(_bytes_of(columns)))
        raise ValueError(f"{header}: {header.remedy}")
    if columns[0].lower().startswith("sep="):
        raise ValueError(
            f"{name}:1: the line {columns[0]!r} is one for Excel alone: remove it, so that the"
            " first line names the columns"
        )
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise ValueError(f"{name}:1: the column {repeated[0]!r} appears twice: rename one of them")


def has_surrogates(text: str) -> bool:
    """Whether a text cannot be written as UTF-8 (undecodable bytes, half a surrogate pair)."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _bytes_of(fields: list[str]) -> bytes:
    return b" ".join(field.encode("utf-8", "surrogateescape") for field in fields)


def _printable(fields: list[str]) -> list[str]:
    return [field.encode("utf-8", "replace").decode() for field in fields]


def read_text(
    path: Path, name: str, start: Start = BEGIN, encoding: str = UTF8
) -> Iterator[Row | BadRow]:
    """Plain text under the column "text".

    Paragraphs separated by blank lines are one example each; a text without any blank line gives
    one example a line. What the first MiB shows decides.
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
                block, is_too_long = block[:1], True  # the rest of the passage is not held
            elif not line.is_blank:
                block.append(line)
        if block:
            yield _text_row(block, name, is_too_long)


def has_paragraphs(file: BinaryIO) -> bool:
    """Whether a blank line stands between two lines of text, in the first MiB."""
    blank_after_text = False
    seen_text = False
    for line in read_lines(file):
        if line.offset > SNIFF_BYTES:
            return False
        if not line.is_blank and blank_after_text:
            return True
        seen_text = seen_text or not line.is_blank
        blank_after_text = seen_text and line.is_blank
    return False


def _text_row(block: list[Line], name: str, is_too_long: bool) -> Row | BadRow:
    first = block[0]
    if is_too_long:
        return too_long(name, first)
    data = b"".join(line.data or b"" for line in block)
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        detail, likely = f"byte {error.start + 1} of the passage", likely_encoding(data)
        return BadRow(name, first.number, INVALID_UTF8, detail, excerpt(data), first.offset, likely)
    return Row({"text": text}, name, first.number, first.offset)
