"""What a file is, told by how it begins, whatever its name says.

A download that gave a web page, an archive, a pointer of Git LFS or UTF-16 is named as such instead
of being read as thousands of broken rows.
"""

import gzip
import zlib
from pathlib import Path

from infrastructure.core.json_text import parse_json
from infrastructure.training.data.readers.line_reader import UTF8_MARK, open_bytes

HEAD_BYTES = 1 << 16

EMPTY, WEB_PAGE, LFS_POINTER = "empty", "a web page", "a pointer of Git LFS"
NOT_WHAT_WAS_MEANT = (EMPTY, WEB_PAGE, LFS_POINTER)

GZIP = b"\x1f\x8b"
PARQUET, HDF5 = "a Parquet file", "an HDF5 file"
SIGNATURES = {
    b"PAR1": PARQUET,
    b"\x89HDF\r\n\x1a\n": HDF5,
    b"PK\x03\x04": "a zip archive (or a Word or Excel file)",
    b"PK\x05\x06": "an empty zip archive",
    b"PK\x07\x08": "a part of a zip archive",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3\x00": "an SQLite database",
    b"%PDF": "a PDF",
    b"{\\rtf": "a text with formatting (RTF)",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Office file",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"RIFF": "an image, a sound or a film",
    b"\x7fELF": "a program",
    b"GGUF": "a GGUF model",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}
TAR_AT, TAR = 257, b"ustar"
UNICODE_MARKS = {b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text"}
BINARY_MAGIC = {"parquet": b"PAR1", "hdf5": b"\x89HDF\r\n\x1a\n"}
UNPACK = "unpack or export it as JSON lines, CSV or Parquet"
REMEDIES = {PARQUET: "name it .parquet", HDF5: "name it .h5"}


def read_head(path: Path) -> bytes:
    """The first bytes of a file, decompressed where it ends in .gz.

    Raises:
        ValueError: it cannot be opened, or is no gzip file although its name says so.
    """
    try:
        with open_bytes(path) as file:
            return file.read(HEAD_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} is no whole gzip file although its name says so: {error}"
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def check_text(path: Path, head: bytes) -> None:
    """Refuse a file that is no UTF-8 text.

    Raises:
        ValueError: says what the file is, as far as its first bytes tell, and what to do.
    """
    what = what_it_is(head)
    if what:
        known, remedy = what
        raise ValueError(f"{path} is {known}, not the text that its name says: {remedy}")


def what_it_is(head: bytes) -> tuple[str, str] | None:
    """What a file is that is no text, told by its first bytes, and what to do about it."""
    if not head.strip(b" \t\r\n\x0b\x0c" + UTF8_MARK):
        return EMPTY, "give a file with data, or remove this one"
    if head.startswith(GZIP):
        return "compressed with gzip", "add .gz to its name, or unpack it"
    for magic, kind in SIGNATURES.items():
        if head.startswith(magic):
            return kind, REMEDIES.get(kind, UNPACK)
    if head[TAR_AT:].startswith(TAR):
        return "a tar archive", UNPACK
    for mark, kind in UNICODE_MARKS.items():
        if head.startswith(mark):
            return kind, "save it as UTF-8"
    start = head.removeprefix(UTF8_MARK).lstrip()[:200].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return WEB_PAGE, "the download gave a page instead of the file; fetch the raw file"
    if start.startswith(b"version https://git-lfs"):
        return LFS_POINTER, "run `git lfs pull` to fetch the file itself"
    if b"\x00" in head:
        return "binary", "give text, Parquet or HDF5"
    return None


def check_binary(path: Path, head: bytes, data_format: str) -> None:
    """Refuse a file that does not begin as its format does.

    Raises:
        ValueError: names the format that was expected.
    """
    magic = BINARY_MAGIC.get(data_format)
    if magic and not head.startswith(magic):
        kind = what_it_is(head)
        what = f" but {kind[0]}" if kind else ""
        raise ValueError(f"{path} is no {data_format} file{what}: check how it was made")


def json_kind(head: bytes, named: str) -> str:
    """Whether JSON text is one document ("json") or one object a line ("jsonl").

    Args:
        named: what the file's name says; it decides where the first line is broken.
    """
    lines = [line for line in head.removeprefix(UTF8_MARK).splitlines() if line.strip()]
    alone = len(lines) == 1
    try:
        first = parse_json(lines[0])
    except ValueError:
        return "json" if lines[0].lstrip().startswith(b"[") else named
    if alone and (isinstance(first, list) or (isinstance(first, dict) and "data" in first)):
        return "json"
    return "jsonl"
