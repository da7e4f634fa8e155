"""Reader of JSON documents, whatever the layout of the rows in them.

The document is read element by element, so it may be larger than memory, and reading can begin at
any element. A document with a syntax error is refused as a whole, because after the error it is
unknown where an element begins.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import RECORD_DECODER, is_too_deep, too_deep
from infrastructure.core.messages import phrase
from infrastructure.data.readers.json_layout import (
    HELD_OUT_KEYS,
    LIST_KEYS,
    MOST_COLUMNS,
    TRAIN_KEY,
    Layout,
    has_paragraphs,
    is_list_of_rows,
    layout_of_object,
    list_of_rows,
    questions_in,
    rows_of_columns,
    unwrapped,
)
from infrastructure.data.readers.line_reader import BEGIN, UTF8_MARK, Start
from infrastructure.data.readers.row_limits import (
    MAX_ROW_BYTES,
    has_too_many_values,
    too_large_words,
)
from infrastructure.data.readers.rows import (
    HALF_CHARACTER,
    INVALID_UTF8,
    WRONG_TYPE,
    BadRow,
    Row,
    excerpt,
    kind_of,
)
from infrastructure.data.readers.text_encoding import UTF8, likely_encoding, open_utf8
from infrastructure.data.readers.text_formats import has_surrogates

READ_BYTES = 1 << 20
MAX_ELEMENT_CHARACTERS = MAX_ROW_BYTES
LONGEST_TOKEN = 16  # a number, literal or escape that the end of a chunk may cut
WHITESPACE = re.compile(r"[ \t\n\r]*")
MAX_TABLE_BYTES = 2 * MAX_ROW_BYTES  # of a table stored by column, which is held in memory


class JsonScanner:
    """A scanner that reads JSON values one by one from a stream, and tracks its position."""

    def __init__(self, file: BinaryIO, name: str, start: Start = BEGIN) -> None:
        self.file = file
        self.name = name
        self.offset, self.line = start
        self._text = ""
        self._index = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        file.seek(self.offset)
        if self.offset == 0 and file.read(len(UTF8_MARK)) == UTF8_MARK:
            self.offset = len(UTF8_MARK)
        file.seek(self.offset)

    def peek(self) -> str:
        """Return the next character after white space, without consuming it; "" at the end."""
        while True:
            match = WHITESPACE.match(self._text, self._index)
            self._pass(match.end() - self._index if match else 0)
            character = self._text[self._index : self._index + 1]
            if character or not self._fill():
                return character

    def take(self, character: str) -> None:
        """Consume the next character, which must be `character`."""
        if self.peek() != character:
            raise self.error(phrase("data.json_expected", character=character))
        self._pass(1)

    def entries(self) -> Iterator[str]:
        """Yield the keys of the next object. The caller consumes the value of each key."""
        self.take("{")
        while self.peek() != "}":
            key = str(self.value())
            self.take(":")
            yield key
            if self.peek() != "}":
                self.take(",")

    def value(self) -> Any:
        """Parse, consume and return the next JSON value."""
        self.peek()
        while True:
            if has_too_many_values(self._text):
                raise self.error(phrase("data.json_element_too_large", size=too_large_words()))
            try:
                value, end = RECORD_DECODER.raw_decode(self._text, self._index)
            except RecursionError as error:
                raise self.error(too_deep()) from error
            except json.JSONDecodeError as error:
                self._read_on(error)
                continue
            except ValueError as error:  # a duplicate key
                raise self.error(str(error)) from error
            if is_too_deep(value):
                raise self.error(too_deep())
            at_the_end = end == len(self._text) and isinstance(value, int | float)
            if not (at_the_end and self._fill()):  # a number may continue in the next chunk
                self._pass(end - self._index)
                return value

    def _read_on(self, error: json.JSONDecodeError) -> None:
        if len(self._text) - self._index > MAX_ELEMENT_CHARACTERS:
            max_mib = MAX_ELEMENT_CHARACTERS >> 20
            raise self.error(phrase("data.json_element_too_long", max_mib=max_mib))
        cut_off = error.pos > len(self._text) - LONGEST_TOKEN or "Unterminated" in error.msg
        if not (cut_off and self._fill()):
            line = self.line + self._text.count("\n", self._index, error.pos)
            words = error.msg.removesuffix(" at")
            raise self.error(phrase("data.json_error_on_line", error=words, line=line))

    def sees_line_end(self) -> bool:
        """Return whether the text that is already in the buffer contains a line break."""
        return "\n" in self._text[self._index :].rstrip()

    def error(self, what: str) -> ValueError:
        return ValueError(phrase("data.json_broken", file=self.name, line=self.line, reason=what))

    def _fill(self) -> bool:
        chunk = self.file.read(max(READ_BYTES, len(self._text) - self._index))
        more = self._utf8.decode(chunk, final=not chunk)
        self._text = self._text[self._index :] + more
        self._index = 0
        return bool(more)

    def _pass(self, num_characters: int) -> None:
        end = self._index + num_characters
        passed = self._text[self._index : end]
        self.offset += len(passed.encode("utf-8", "surrogateescape"))
        self.line += passed.count("\n")
        self._index = end


def read_json(
    path: Path, name: str, start: Start = BEGIN, encoding: str = UTF8, split: str = ""
) -> Iterator[Row | BadRow]:
    """Yield the rows of a JSON document; see `json_layout` for the layouts.

    A row's `line` is the line that it begins on, or the row's number if several rows share one
    line. Its `offset` is the position at which it begins, or the row's number if the row is not a
    JSON value of its own.

    Args:
        split: the key of the list to read; "": the list with training rows.

    Raises:
        ValueError: the document has a syntax error, or is too large for its layout.
    """
    with open_utf8(path, encoding) as file:
        layout, key, is_nested = _layout(JsonScanner(file, name))
        key = split or key
        if layout is Layout.COLUMNS:
            values: Iterator[object] = rows_of_columns(_whole(JsonScanner(file, name)))
            yield from _counted(values, name, start)
            return
        if is_nested:
            scanner = _entered(JsonScanner(file, name), layout, key)
            yield from _counted(_each(scanner, layout, questions_in), name, start)
            _check_end(scanner, layout, key)
            return
        counts = _share_a_line(_entered(JsonScanner(file, name), layout, key), layout)
        scanner = JsonScanner(file, name, start)
        if start == BEGIN:
            _entered(scanner, layout, key)
        number = start.line
        for value, line, offset in _values(scanner, layout):
            yield _element(unwrapped(value), name, number if counts else line, offset)
            number += 1
        if start == BEGIN:
            _check_end(scanner, layout, key)


class Lists(NamedTuple):
    """The lists of objects in a JSON document besides the list with the training rows.

    Attributes:
        held_out: the key of the rows to hold out; "" if there are none.
        unread: the keys of the other lists, which nothing reads.
    """

    held_out: str = ""
    unread: tuple[str, ...] = ()


def lists_of(path: Path, encoding: str = UTF8) -> Lists:
    """Return the other lists in a JSON document, besides the training rows. If the document has a
    syntax error, return no lists.
    """
    stat = path.stat()
    return _lists_of(path, encoding, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=64)  # called several times at the start of a run, and a document may be large
def _lists_of(path: Path, encoding: str, _stamp: tuple[int, int]) -> Lists:
    with open_utf8(path, encoding) as file:
        try:
            layout, key, _ = _layout(JsonScanner(file, ""))
            if layout is not Layout.LIST:
                return Lists()
            others = [name for name in _keys_of_lists(JsonScanner(file, "")) if name != key]
        except ValueError:
            return Lists()
    held_out = next((name for name in HELD_OUT_KEYS if name in others), "")
    held_out = held_out if key == TRAIN_KEY else ""
    return Lists(held_out, tuple(name for name in others if name != held_out))


def _keys_of_lists(scanner: JsonScanner) -> Iterator[str]:
    """Yield the keys whose values are lists of objects; holds one element at a time."""
    for key in scanner.entries():
        if _pass_value(scanner):
            yield key


def _layout(scanner: JsonScanner) -> tuple[Layout, str, bool]:
    """Return the layout, the key of the list of rows, and whether each element contains many rows.

    Values are read one by one until the layout is clear.
    """
    if scanner.peek() == "[":
        scanner.take("[")
        is_nested = scanner.peek() == "{" and has_paragraphs(scanner.value())
        return Layout.ARRAY, "", is_nested
    seen: dict[str, object] = {}
    held = 0
    for key in scanner.entries():
        if key in LIST_KEYS and scanner.peek() == "[":
            scanner.take("[")
            first = scanner.value() if scanner.peek() not in ("", "]") else {}
            if is_list_of_rows([first]) or first == {}:
                return Layout.LIST, key, has_paragraphs(first)
            before, seen[key] = scanner.offset, [first]
            while scanner.peek() != "]":
                scanner.take(",")
                scanner.value()
            scanner.take("]")
            held += scanner.offset - before
        else:
            before = scanner.offset
            seen[key] = scanner.value()
            held += scanner.offset - before
        if len(seen) > MOST_COLUMNS or held > MAX_TABLE_BYTES:
            if all(isinstance(value, dict) for value in seen.values()):
                return Layout.RECORDS, "", False
            raise InputError(
                "data.json_object_too_large",
                file=scanner.name,
                max_mib=MAX_TABLE_BYTES >> 20,
                max_columns=MOST_COLUMNS,
            )
    scanner.take("}")
    if scanner.peek():
        return Layout.OBJECTS, "", False
    key = list_of_rows(seen) or ""
    if key:
        rows = seen[key]
        return Layout.LIST, key, isinstance(rows, list) and has_paragraphs(rows[0])
    return layout_of_object(seen), "", False


def _whole(scanner: JsonScanner) -> dict[str, object]:
    """Return the document as a whole; `_layout` has checked that it is not too large."""
    return {key: scanner.value() for key in scanner.entries()}


def _entered(scanner: JsonScanner, layout: Layout, key: str) -> JsonScanner:
    """Move the scanner to the first row of the document, and return the scanner."""
    if layout is Layout.ARRAY:
        scanner.take("[")
    elif layout in (Layout.LIST, Layout.RECORDS):
        for name in scanner.entries():
            if layout is Layout.RECORDS:
                break
            if name == key and scanner.peek() == "[":
                scanner.take("[")
                break
            scanner.value()
    return scanner


def _values(scanner: JsonScanner, layout: Layout) -> Iterator[tuple[object, int, int]]:
    """Yield each JSON value with its line and offset, from the scanner's position on."""
    end = {Layout.ARRAY: "]", Layout.LIST: "]", Layout.RECORDS: "}"}.get(layout, "")
    while scanner.peek() != end:
        line, offset = scanner.line, scanner.offset
        yield scanner.value(), line, offset
        is_next = scanner.peek() != end
        if (end and is_next) or scanner.peek() == ",":
            scanner.take(",")
        if layout is Layout.RECORDS and is_next:
            scanner.value()
            scanner.take(":")
    if end:
        scanner.take(end)


def _check_end(scanner: JsonScanner, layout: Layout, key: str) -> None:
    """Check that no rows follow after the list of rows, by reading the rest of the document.

    Raises:
        ValueError: there may be more rows, which would be lost silently.
    """
    if layout is Layout.LIST:
        while scanner.peek() == ",":
            scanner.take(",")
            name = scanner.value()
            scanner.take(":")
            if name == key:
                raise scanner.error(phrase("data.json_key_twice", key=key))
            _pass_value(scanner)
        scanner.take("}")
    if scanner.peek():
        raise scanner.error(phrase("data.json_text_after_end"))


def _pass_value(scanner: JsonScanner) -> bool:
    """Skip a value, and return whether it is a list of objects. Only one element at a time is held
    in memory.
    """
    if scanner.peek() != "[":
        scanner.value()
        return False
    scanner.take("[")
    are_rows = scanner.peek() == "{"
    while scanner.peek() != "]":
        scanner.value()
        if scanner.peek() != "]":
            scanner.take(",")
    scanner.take("]")
    return are_rows


def _share_a_line(scanner: JsonScanner, layout: Layout) -> bool:
    """Return whether the file has one line with several rows, so that line numbers are useless."""
    for number, _ in enumerate(_values(scanner, layout)):
        if number == 1:
            return scanner.line == 1 and not scanner.sees_line_end()
    return False


def _each(
    scanner: JsonScanner, layout: Layout, rows_in: Callable[[object], Iterator[object]]
) -> Iterator[object]:
    for value, _, _ in _values(scanner, layout):
        yield from rows_in(value)


def _counted(values: Iterator[object], name: str, start: Start) -> Iterator[Row | BadRow]:
    """Yield rows from `start` on, numbered in order because they have no line of their own."""
    for index, value in enumerate(values):
        if index >= start.offset:
            yield _element(value, name, index + 1, index)


def _element(value: object, name: str, line: int, offset: int) -> Row | BadRow:
    if not isinstance(value, dict):
        detail = phrase("data.json_element_not_object", kind=kind_of(value))
        return BadRow(name, line, WRONG_TYPE, detail, excerpt(value), offset)
    if any(map(has_surrogates, _texts(value))):
        text = " ".join(_texts(value))
        shown = excerpt(text.encode("utf-8", "replace"))
        try:
            likely = likely_encoding(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:  # an escape of half a surrogate pair
            return BadRow(name, line, HALF_CHARACTER, "", shown, offset)
        return BadRow(name, line, INVALID_UTF8, "", shown, offset, likely)
    return Row(value, name, line, offset)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *_texts(item))
