"""Reader of JSON documents: an array of objects, or an object with such an array under "data".

The document is read element by element, so it may be larger than memory, and reading can begin at
any element. A broken document is refused as a whole: past the break nobody knows where an
element begins.
"""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from infrastructure.core.json_text import is_too_deep, too_deep
from infrastructure.training.data.readers.line_reader import BEGIN, UTF8_MARK, Start, open_bytes
from infrastructure.training.data.readers.row_limits import (
    MAX_ROW_BYTES,
    has_too_many_values,
    too_large_words,
)
from infrastructure.training.data.readers.rows import (
    INVALID_UTF8,
    WRONG_TYPE,
    BadRow,
    Row,
    excerpt,
    kind_of,
)
from infrastructure.training.data.readers.text_formats import has_surrogates

READ_BYTES = 1 << 20
MAX_ELEMENT_CHARACTERS = MAX_ROW_BYTES
LONGEST_TOKEN = 16  # a number, literal or escape that a chunk may have cut
WHITESPACE = re.compile(r"[ \t\n\r]*")
DATA_KEY = "data"


class JsonScanner:
    """Takes JSON values one after the other out of a stream, and knows where it stands."""

    def __init__(self, file: BinaryIO, name: str, start: Start = BEGIN) -> None:
        self.file = file
        self.name = name
        self.offset, self.line = start
        self._text = ""
        self._index = 0
        self._decoder = json.JSONDecoder()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        file.seek(self.offset)
        if self.offset == 0 and file.read(len(UTF8_MARK)) == UTF8_MARK:
            self.offset = len(UTF8_MARK)
        file.seek(self.offset)

    def peek(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            match = WHITESPACE.match(self._text, self._index)
            self._pass(match.end() - self._index if match else 0)
            character = self._text[self._index : self._index + 1]
            if character or not self._fill():
                return character

    def take(self, character: str) -> None:
        """Pass over one character that must come next."""
        if self.peek() != character:
            raise self.error(f"expected {character!r}")
        self._pass(1)

    def value(self) -> Any:
        """The next value, read whole."""
        self.peek()
        while True:
            if has_too_many_values(self._text):
                raise self.error(f"an element of {too_large_words()}")
            try:
                value, end = self._decoder.raw_decode(self._text, self._index)
            except RecursionError as error:
                raise self.error(too_deep()) from error
            except json.JSONDecodeError as error:
                self._read_on(error)
                continue
            if is_too_deep(value):
                raise self.error(too_deep())
            at_the_end = end == len(self._text) and isinstance(value, int | float)
            if not (at_the_end and self._fill()):  # a number may go on in the next chunk
                self._pass(end - self._index)
                return value

    def _read_on(self, error: json.JSONDecodeError) -> None:
        if len(self._text) - self._index > MAX_ELEMENT_CHARACTERS:
            raise self.error(f"an element longer than {MAX_ELEMENT_CHARACTERS >> 20} MiB")
        cut_off = error.pos > len(self._text) - LONGEST_TOKEN or "Unterminated" in error.msg
        if not (cut_off and self._fill()):
            line = self.line + self._text.count("\n", self._index, error.pos)
            raise self.error(f"{error.msg.removesuffix(' at')} on line {line}")

    def error(self, what: str) -> ValueError:
        return ValueError(
            f"{self.name}:{self.line}: broken JSON ({what}); nothing past the break can be read:"
            " mend the file or write it as JSON lines"
        )

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


def read_json(path: Path, name: str, start: Start = BEGIN) -> Iterator[Row | BadRow]:
    """The objects of a JSON array, or of the array under "data" of a JSON object.

    Raises:
        ValueError: the document is broken, or is neither of the two.
    """
    with open_bytes(path) as file:
        scanner = JsonScanner(file, name, start)
        in_object = False
        if start == BEGIN:
            in_object = _enter_array(scanner)
        yield from _elements(scanner, name)
        if start == BEGIN and not in_object and scanner.peek():
            raise scanner.error("text after the end of the array")


def _enter_array(scanner: JsonScanner) -> bool:
    """Move to the first element; True when the array lies inside an object."""
    if scanner.peek() == "[":
        scanner.take("[")
        return False
    scanner.take("{")
    keys: list[str] = []
    while scanner.peek() != "}":
        keys.append(str(scanner.value()))
        scanner.take(":")
        if keys[-1] == DATA_KEY and scanner.peek() == "[":
            scanner.take("[")
            return True
        scanner.value()
        if scanner.peek() == ",":
            scanner.take(",")
    names = ", ".join(map(repr, keys)) or "no key"
    raise ValueError(
        f'{scanner.name}: the JSON object has no list under "{DATA_KEY}" (it has {names}):'
        f' write an array of objects, or {{"{DATA_KEY}": [...]}}'
    )


def _elements(scanner: JsonScanner, name: str) -> Iterator[Row | BadRow]:
    while scanner.peek() != "]":
        line, offset = scanner.line, scanner.offset
        yield _element(scanner.value(), name, line, offset)
        if scanner.peek() != "]":
            scanner.take(",")
    scanner.take("]")


def _element(value: object, name: str, line: int, offset: int) -> Row | BadRow:
    if not isinstance(value, dict):
        detail = f"the element is {kind_of(value)}, not an object"
        return BadRow(name, line, WRONG_TYPE, detail, excerpt(value), offset)
    if any(map(has_surrogates, _texts(value))):
        text = str(value).encode("utf-8", "replace")
        return BadRow(name, line, INVALID_UTF8, "", excerpt(text), offset)
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
