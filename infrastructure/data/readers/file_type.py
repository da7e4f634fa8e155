"""Detection of a file's type by its first bytes, independent of its name.

A download that returned a web page, an archive or a Git LFS pointer is reported as such instead of
being read as thousands of broken rows.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import parse_json
from infrastructure.core.messages import phrase
from infrastructure.data.readers.compressed import (
    DAMAGED,
    EXCEL,
    data_name,
    document_kind,
    is_damaged,
)
from infrastructure.data.readers.json_layout import is_one_row
from infrastructure.data.readers.line_reader import BEGIN, UTF8_MARK, Start
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.readers.text_encoding import AUTO, encoding_of, open_utf8

HEAD_BYTES = 1 << 16

# What a file can be: codes of the words that name it in messages.
EMPTY, WEB_PAGE = "data.kind_empty", "data.kind_web_page"
LFS_POINTER = "data.kind_lfs_pointer"
NOT_WHAT_WAS_MEANT = (EMPTY, WEB_PAGE, LFS_POINTER)

GZIP = b"\x1f\x8b"
ZIP_ARCHIVE, ZSTD, BZIP2 = "data.kind_zip", "data.kind_zstd", "data.kind_bzip2"
PARQUET, HDF5 = "data.kind_parquet", "data.kind_hdf5"
OLD_OFFICE = "data.kind_old_office"
SIGNATURES = {
    b"PAR1": PARQUET,
    b"\x89HDF\r\n\x1a\n": HDF5,
    b"PK\x03\x04": ZIP_ARCHIVE,
    b"PK\x05\x06": "data.kind_empty_zip",
    b"PK\x07\x08": "data.kind_zip_part",
    b"BZh": BZIP2,
    b"\xfd7zXZ\x00": "data.kind_xz",
    b"\x28\xb5\x2f\xfd": ZSTD,
    b"7z\xbc\xaf\x27\x1c": "data.kind_7z",
    b"Rar!\x1a\x07": "data.kind_rar",
    b"ARROW1": "data.kind_arrow",
    b"SQLite format 3\x00": "data.kind_sqlite",
    b"%PDF": "data.kind_pdf",
    b"{\\rtf": "data.kind_rtf",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": OLD_OFFICE,
    b"\x89PNG": "data.kind_image",
    b"\xff\xd8\xff": "data.kind_image",
    b"GIF8": "data.kind_image",
    b"RIFF": "data.kind_riff",
    b"\x7fELF": "data.kind_program",
    b"GGUF": "data.kind_gguf",
    b"\x80\x02": "data.kind_pickle",
    b"\x80\x03": "data.kind_pickle",
    b"\x80\x04": "data.kind_pickle",
    b"\x80\x05": "data.kind_pickle",
}
TAR_AT, TAR = 257, b"ustar"
MANY, FEW = 0.4, 0.05  # shares of a file's bytes; ASCII in UTF-16 has a 0 in every other byte

REMEDIES = {
    PARQUET: "data.rename_parquet",
    HDF5: "data.rename_hdf5",
    EXCEL: "data.rename_excel",
    OLD_OFFICE: "data.save_as_xlsx",
    ZIP_ARCHIVE: "data.rename_zip",
    ZSTD: "data.add_zst_extension",
    BZIP2: "data.add_bz2_extension",
}


def read_head(path: Path, encoding: str = AUTO) -> tuple[bytes, str]:
    """Return the first bytes of a file, decompressed and converted to UTF-8, and its encoding.

    Args:
        encoding: the encoding of a file without a byte order mark.

    Raises:
        ValueError: the file cannot be opened, is not compressed although its name says so, or is
            UTF-8 although `encoding` says otherwise.
    """
    try:
        detected = encoding_of(path, encoding)
        with open_utf8(path, detected) as file:
            return file.read(HEAD_BYTES), detected
    except (EOFError, OSError, *DAMAGED) as error:
        if is_damaged(error):
            kind = {".gz": "gzip", ".bz2": "bzip2", ".zst": "zstd"}.get(path.suffix.lower(), "zip")
            raise InputError(
                "data.compressed_file_damaged", path=path, kind=kind, reason=error
            ) from error
        reason = getattr(error, "strerror", None) or error
        raise InputError("data.file_unreadable", path=path, reason=reason) from error


def check_text(path: Path, head: bytes) -> None:
    """Reject a file that is not UTF-8 text.

    Raises:
        ValueError: the file is not text; the message says what kind of file it is, if known, and
            what to do.
    """
    what = kind_of_file(path, head)
    if what:
        known, remedy = what
        contrast = "" if known == EMPTY else phrase("data.not_text_as_named")
        raise InputError(
            "data.file_not_text", path=path, kind=phrase(known), contrast=contrast, remedy=remedy
        )


def kind_of_file(path: Path, head: bytes) -> tuple[str, str] | None:
    """Return the message code for a file that is not text, and the remedy; None for text.

    For a zip archive that is an office document, the code is that of the kind of document.
    """
    what = what_it_is(head)
    if what is None or what[0] != ZIP_ARCHIVE or data_name(path) != path:
        return what
    try:
        kind = document_kind(path) or ZIP_ARCHIVE
    except ValueError:
        return what
    return kind, phrase(REMEDIES.get(kind, "data.export_as_text"))


def what_it_is(head: bytes) -> tuple[str, str] | None:
    """Return the message code and the remedy for the file type that the first bytes show.

    Return None if the bytes look like text.
    """
    if not head.strip(b" \t\r\n\x0b\x0c" + UTF8_MARK):
        return EMPTY, phrase("data.give_nonempty_file")
    if head.startswith(GZIP):
        return "data.kind_gzip", phrase("data.add_gz_extension")
    for magic, kind in SIGNATURES.items():
        if head.startswith(magic):
            return kind, phrase(REMEDIES.get(kind, "data.unpack_or_export"))
    if head[TAR_AT:].startswith(TAR):
        return "data.kind_tar", phrase("data.unpack_or_export")
    start = head.removeprefix(UTF8_MARK).lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return WEB_PAGE, phrase("data.web_page_downloaded")
    if start.startswith(b"version https://git-lfs"):
        return LFS_POINTER, phrase("data.fetch_lfs_file")
    even, odd = head[::2].count(0) / len(head), head[1::2].count(0) / len(head)
    if max(even, odd) > MANY and min(even, odd) < FEW:
        encoding = "utf-16-le" if odd > even else "utf-16-be"
        return "data.utf16_without_bom", phrase("data.set_encoding", encoding=encoding)
    if b"\x00" in head:
        return "data.kind_binary", phrase("data.give_readable_format")
    return None


class BinaryFormat:
    """A data format whose reader numbers its rows itself, and can begin at any of them.

    An object of a subclass can be registered like a function that reads a format.

    Attributes:
        title: the name of the format in messages.
        magic: the first bytes of each such file.
        extensions: the extensions of such files, such as ".xlsx".
        has_header: whether the first line of a file names the columns.
    """

    title = ""
    magic = b""
    extensions: tuple[str, ...] = ()
    has_header = False

    def __call__(self, path: Path, name: str, start: Start = BEGIN) -> Iterator[Row | BadRow]:
        """Yield the rows of a file from `start` on; `name` is its name in messages.

        Raises:
            ValueError: the file is damaged or has another layout.
        """
        raise NotImplementedError

    def unread(self, path: Path, name: str) -> str:
        """Return a note on the parts of a file that are not read; "" if there are none."""
        return ""

    def check(self, path: Path, head: bytes) -> None:
        """Reject a file that does not begin with the magic bytes.

        Raises:
            ValueError: the first bytes are different; the message names the expected format.
        """
        if head.startswith(self.magic):
            return
        kind = what_it_is(head)
        what = (
            phrase("data.but_kind", kind=phrase(kind[0]), remedy=kind[1])
            if kind
            else _but_text(head)
        )
        raise InputError("data.file_not_of_format", path=path, format=self.title, what=what)


def _but_text(head: bytes) -> str:
    is_json = head.removeprefix(UTF8_MARK).lstrip()[:1] in (b"{", b"[")
    meant = "jsonl" if is_json else "csv"
    return phrase("data.but_text", format=meant)


def json_kind(head: bytes, named: str) -> str:
    """Return "json" if JSON text is one document, or "jsonl" if it is one object per line.

    A text whose objects span several lines, or share a line, is a document.

    Args:
        named: the format that the file name suggests, which is returned if the first line is
            broken.
    """
    text = head.removeprefix(UTF8_MARK)
    lines = [line for line in text.splitlines() if line.strip()]
    alone = len(lines) == 1
    try:
        first = parse_json(lines[0])
    except ValueError:
        begins = lines[0].lstrip()
        return "json" if begins.startswith(b"[") or _are_objects(text, begins) else named
    if isinstance(first, list):
        return "json" if alone else "jsonl"
    return "json" if alone and isinstance(first, dict) and not is_one_row(first) else "jsonl"


def _are_objects(text: bytes, first_line: bytes) -> bool:
    """Return whether a JSON text is a sequence of objects, but not one object per line."""
    if first_line == b"{":
        return True
    begun = text.decode("utf-8", "replace").lstrip()
    try:
        first, end = json.JSONDecoder().raw_decode(begun)
    except (ValueError, RecursionError):
        return False
    rest = begun[end:].lstrip()
    is_next = not rest or rest.lstrip(", \r\n\t").startswith(("{", "}"))
    return isinstance(first, dict) and is_next
