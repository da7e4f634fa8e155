"""Text in any encoding as a stream of UTF-8 bytes, which is all that readers read.

A byte that the encoding does not have becomes one that UTF-8 does not have either, so the row that
holds it is set aside, and no other.
"""

import codecs
import re
from pathlib import Path
from typing import BinaryIO

from infrastructure.core.errors import InputError
from infrastructure.training.data.readers.compressed import open_bytes, rewindable

AUTO, UTF8 = "auto", ""
MARKS = {  # UTF-32 first: its mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: UTF8,
}
LIKELY = "cp1252"
MOST_IN_A_ROW, LARGEST_SHARE = 3, 1 / 3  # of letters beside ASCII, in Western languages
READ_BYTES = 1 << 16
UNDECODABLE = "temper-undecodable"
NEVER_UTF8 = "\udcff"  # byte FF, as `surrogateescape` writes it


def open_utf8(path: Path, encoding: str = UTF8) -> BinaryIO:
    """Open text for reading, decompressed and as UTF-8; `encoding` is a codec of Python's.

    Where the lines of a file end with CR alone, as on old Macs, they end with LF here.
    """
    if _ends_lines_with_cr(path, encoding):
        return rewindable(lambda: _WithLineFeeds(_opened(path, encoding)))
    return _opened(path, encoding)


def _ends_lines_with_cr(path: Path, encoding: str) -> bool:
    with _opened(path, encoding) as file:
        head = file.read(READ_BYTES)
    return b"\r" in head.rstrip(b"\r") and b"\n" not in head


class _WithLineFeeds:
    """Reads text whose lines end with CR; as many bytes, so places in it stay what they are."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).replace(b"\r", b"\n")

    def close(self) -> None:
        self._file.close()


def _opened(path: Path, encoding: str) -> BinaryIO:
    if encoding == UTF8:
        return open_bytes(path)
    codecs.register_error(UNDECODABLE, lambda error: (NEVER_UTF8, _end_of(error)))
    return rewindable(lambda: _Recoded(open_bytes(path), encoding))


def _end_of(error: UnicodeError) -> int:
    assert isinstance(error, UnicodeDecodeError)
    return error.end


class _Recoded:
    """Reads text in one encoding, and gives its UTF-8; goes forward only."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)(UNDECODABLE)
        self._ready = b""
        self._is_read = False

    def read(self, size: int) -> bytes:
        while not self._ready and not self._is_read:
            chunk = self._file.read(READ_BYTES)
            self._is_read = not chunk
            text = self._decoder.decode(chunk, final=self._is_read)
            self._ready = text.encode("utf-8", "surrogateescape")
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def close(self) -> None:
        self._file.close()


def encoding_of(path: Path, setting: str) -> str:
    """The encoding of a file: what its mark says, else `data.encoding`; "" is UTF-8.

    Raises:
        ValueError: the setting names an encoding, and the file is UTF-8.
        OSError: it cannot be read.
    """
    with open_bytes(path) as file:
        head = file.read(READ_BYTES)
    for mark, encoding in MARKS.items():
        if head.startswith(mark):
            return encoding
    if setting in (AUTO, "utf-8"):
        return UTF8
    if _is_utf8(head) and b"\x00" not in head:
        raise InputError("data.utf8_despite_encoding", path=path, encoding=setting)
    return setting


def _is_utf8(head: bytes) -> bool:
    """Whether the beginning of a file has characters beside ASCII, and all are UTF-8."""
    if head.isascii():
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def likely_encoding(data: bytes) -> str:
    """What reads bytes that are no UTF-8, as far as they tell: Windows-1252, or "".

    In the languages that Windows-1252 was made for, letters beside ASCII are few and stand alone;
    in others, words are made of them.
    """
    runs: list[bytes] = re.findall(rb"[\x80-\xff]+", data)
    num_letters = len(re.findall(rb"[A-Za-z\x80-\xff]", data))
    num_others = sum(map(len, runs))
    if not runs or max(map(len, runs)) > MOST_IN_A_ROW or num_others > LARGEST_SHARE * num_letters:
        return ""
    try:
        data.decode(LIKELY)
    except UnicodeDecodeError:
        return ""
    return LIKELY
