"""Conversion of text in any encoding to a stream of UTF-8 bytes, which all readers expect.

A byte that is invalid in the source encoding becomes a byte that is invalid in UTF-8, so that only
its row is skipped.
"""

import codecs
import re
from pathlib import Path
from typing import BinaryIO

from infrastructure.core.errors import InputError
from infrastructure.data.readers.compressed import open_bytes, rewindable

AUTO, UTF8 = "auto", ""
MARKS = {  # UTF-32 first: its mark begins like that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: UTF8,
}
LIKELY = "cp1252"
MOST_IN_A_ROW, LARGEST_SHARE = 3, 1 / 3  # of non-ASCII letters, in Western languages
READ_BYTES = 1 << 16
UNDECODABLE = "temper-undecodable"
NEVER_UTF8 = "\udcff"  # byte FF in `surrogateescape`


def open_utf8(path: Path, encoding: str = UTF8) -> BinaryIO:
    """Open a text file as a stream of UTF-8, decompressed; `encoding` is a Python codec's name.

    If lines end with CR only, as on old Macs, each CR is replaced by LF.
    """
    if _ends_lines_with_cr(path, encoding):
        return rewindable(lambda: _WithLineFeeds(_opened(path, encoding)))
    return _opened(path, encoding)


def _ends_lines_with_cr(path: Path, encoding: str) -> bool:
    with _opened(path, encoding) as file:
        head = file.read(READ_BYTES)
    return b"\r" in head.rstrip(b"\r") and b"\n" not in head


class _WithLineFeeds:
    """A stream that replaces CR line ends by LF; all offsets stay the same."""

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
    """A forward-only stream that reads text in one encoding and returns UTF-8."""

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
    """Return the encoding of a file: that of its byte order mark, or else `setting`; "" means
    UTF-8.

    Raises:
        ValueError: the setting names an encoding, and the file is UTF-8.
        OSError: the file cannot be read.
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
    """Return whether the first bytes of a file have non-ASCII characters that are valid UTF-8."""
    if head.isascii():
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def likely_encoding(data: bytes) -> str:
    """Return the likely encoding of bytes that are not UTF-8: Windows-1252, or "".

    In the languages of Windows-1252, non-ASCII letters are few and isolated. In other languages,
    whole words consist of them.
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
