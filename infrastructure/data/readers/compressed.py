"""Compressed files and archives as byte streams, decompressed while they are read.

A zip archive is read as the single data file in it. The archive's directory must be held in memory
as a whole, so its size is checked first.
"""

import bz2
import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require

ZIP = ".zip"
COMPRESSED = (".gz", ".bz2", ".zst", ZIP)
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile)

ZIP_BEGINNING = b"PK\x03\x04"
MAX_LISTING_BYTES = 4 << 20
END_RECORD, END_BYTES = b"PK\x05\x06", 22
LARGE_END, LARGE_END_BYTES = b"PK\x06\x07", 20
LONGEST_COMMENT = 1 << 16
IS_ENCRYPTED = 1
READABLE_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may claim much memory
EXCEL = "data.kind_excel"
DOCUMENTS = {
    "word/document.xml": "data.kind_word",
    "xl/workbook.xml": EXCEL,
    "xl/workbook.bin": EXCEL,
    "ppt/presentation.xml": "data.kind_powerpoint",
    "META-INF/container.xml": "data.kind_epub",
    "content.xml": "data.kind_opendocument",
}
PASSED_BYTES = 1 << 16


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading; a compressed file, recognized by its name, is decompressed."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.open(path, "rb"))
    if suffix == ".zst":
        return rewindable(lambda: _open_zstd(path))
    if is_zip(path):
        return _open_member(path)
    return path.open("rb")


def is_zip(path: Path) -> bool:
    """Return whether a file is a zip archive, by its name and its first bytes."""
    if path.suffix.lower() != ZIP or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(ZIP_BEGINNING)) == ZIP_BEGINNING


def is_damaged(error: BaseException) -> bool:
    """Return whether an error while reading a compressed file means that the file is damaged."""
    if isinstance(error, DAMAGED):
        return True
    return isinstance(error, OSError) and error.errno is None  # as bz2 and Arrow raise it


def data_name(path: Path) -> Path:
    """Return the name of the uncompressed data: without .gz, or the name of the data file in an
    archive.
    """
    if is_zip(path):
        return Path(PurePosixPath(member_of(path)).name)
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED[:-1] else path


def member_of(path: Path) -> str:
    """Return the name of the only data file in a zip archive.

    Raises:
        ValueError: there is no data file or several, or the archive cannot be read.
    """
    with _listed(path) as archive:
        infos = [info for info in archive.infolist() if _may_be_data(info.filename)]
        if (what := document_kind(path)) is not None:
            raise InputError("data.document_not_data", path=path.name, what=phrase(what))
    tables = [info for info in infos if not _is_text(info.filename)] or infos
    if len(tables) != 1:
        names = ", ".join(info.filename for info in tables[:3]) or "nothing"
        raise InputError(
            "data.zip_needs_one_file", path=path, num_files=len(tables), names=names[:80]
        )
    info = tables[0]
    if info.flag_bits & IS_ENCRYPTED or info.compress_type not in READABLE_METHODS:
        is_encrypted = info.flag_bits & IS_ENCRYPTED
        why = phrase("data.has_password" if is_encrypted else "data.unsupported_compression")
        raise InputError(
            "data.zip_member_unreadable", path=path, filename=info.filename[:80], reason=why
        )
    return info.filename


def num_other_members(path: Path) -> int:
    """Return the number of files in an archive besides its data file."""
    with _listed(path) as archive:
        return sum(not _is_noise(info.filename) for info in archive.infolist()) - 1


def document_kind(path: Path) -> str | None:
    """Return the message code for the kind of an office document; None for other zip archives."""
    with _listed(path) as archive:
        names = set(archive.namelist())
    return next((kind for name, kind in DOCUMENTS.items() if name in names), None)


def _listed(path: Path) -> zipfile.ZipFile:
    """Open a zip archive, after checking that its directory is small enough for memory.

    Raises:
        ValueError: the archive is damaged, or its directory is too large.
    """
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - END_BYTES - LONGEST_COMMENT))
        tail = file.read()
    at = tail.rfind(END_RECORD)
    if at < 0 or len(tail) - at < END_BYTES:
        raise InputError("data.zip_truncated", path=path)
    (listing_bytes,) = struct.unpack_from("<I", tail, at + 12)
    is_large = tail[max(0, at - LARGE_END_BYTES) : at].startswith(LARGE_END)
    if is_large or listing_bytes > MAX_LISTING_BYTES:
        raise InputError("data.zip_too_large", path=path)
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, RuntimeError, OSError, ValueError) as error:
        raise InputError("data.zip_unreadable", path=path, reason=error) from error


def _is_noise(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return name.endswith("/") or any(part.startswith((".", "_")) for part in parts)


def _may_be_data(name: str) -> bool:
    stem = PurePosixPath(name).stem.lower()
    return not _is_noise(name) and stem not in ("readme", "license", "licence")


def _is_text(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in (".txt", ".text", ".md", ".pdf", ".html")


def _open_member(path: Path) -> BinaryIO:
    archive = _listed(path)
    with archive:  # the member keeps the file open until it is closed itself
        try:
            return cast(BinaryIO, archive.open(member_of(path)))
        except (zipfile.BadZipFile, RuntimeError, OSError, EOFError) as error:
            raise InputError("data.zip_unreadable", path=path, reason=error) from error


def inflated_bytes(path: Path) -> int:
    """Return the unpacked size of all files of an archive, as the archive states it.

    `zipfile` never unpacks more of a deflated file than the stated size.

    Raises:
        ValueError: the archive cannot be read, or uses another compression.
    """
    with _listed(path) as archive:
        infos = archive.infolist()
    if any(info.compress_type not in READABLE_METHODS for info in infos):
        reason = phrase("data.unsupported_compression")
        raise InputError("data.zip_unreadable", path=path, reason=reason)
    return sum(info.file_size for info in infos)


def _open_zstd(path: Path) -> BinaryIO:
    """Open a zstd file with Arrow, which needs little memory and reports truncated files."""
    arrow = require("pyarrow", "data.read_zst")
    file = arrow.CompressedInputStream(arrow.OSFile(str(path), "rb"), "zstd")
    return cast(BinaryIO, file)


def rewindable(open_again: Callable[[], Any]) -> BinaryIO:
    """Return a seekable stream for a stream that can only be read forward.

    Args:
        open_again: opens the data at its beginning; called when the stream seeks back.
    """
    return cast(BinaryIO, io.BufferedReader(_Rewindable(open_again), PASSED_BYTES))


class _Rewindable(io.RawIOBase):
    """A seekable wrapper of a forward-only stream. To seek back, it opens the stream again."""

    def __init__(self, open_again: Callable[[], Any]) -> None:
        self._open_again = open_again
        self._file = open_again()
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            offset += self._position if whence == io.SEEK_CUR else 0
        if offset < self._position:
            self._file.close()
            self._file, self._position = self._open_again(), 0
        while self._position < offset:
            data = self._file.read(min(PASSED_BYTES, offset - self._position))
            if not data:
                break
            self._position += len(data)
        return self._position

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
