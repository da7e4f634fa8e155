"""Checksums of files that are written once and read much later.

A JSON record contains its own checksum. A folder has a file SHA256SUMS in the format of `sha256sum
--check`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from infrastructure.core.errors import DamagedFileError
from infrastructure.core.files import atomic_write, file_sha256, write_json
from infrastructure.core.json_text import JsonObject, as_object, parse_json

CHECKSUM = "checksum"  # key of the checksum in a record
SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Write a JSON object with its checksum to `path`, atomically."""
    write_json(path, with_checksum(record))


def with_checksum(record: Mapping[str, object]) -> JsonObject:
    """Return a record with its checksum added, for verification by `parse_record`."""
    plain = json.loads(json.dumps({**record}, allow_nan=False))
    return {**plain, CHECKSUM: _checksum(plain)}


def read_record(path: Path) -> JsonObject:
    """Return the JSON object in `path`, without its checksum.

    Records written by older versions of Temper have no checksum and are not verified.

    Raises:
        FileNotFoundError: if the file does not exist.
        DamagedFileError: if its contents have changed since it was written.
    """
    try:
        return parse_record(path.read_bytes())
    except DamagedFileError as error:
        raise DamagedFileError("core.damaged_record", path=path, error=error) from error


def parse_record(data: bytes) -> JsonObject:
    """Parse the bytes of a record file and verify its checksum, as `read_record` does.

    Raises:
        DamagedFileError: if the bytes have changed since they were written.
    """
    try:
        record = parse_json(data)
    except ValueError as error:
        raise DamagedFileError("core.record_not_json", error=error) from error
    if not isinstance(record, dict):
        raise DamagedFileError("core.record_not_object")
    expected = record.pop(CHECKSUM, None)
    if expected is not None and expected != _checksum(record):
        raise DamagedFileError("core.record_checksum_mismatch")
    return record


def has_checksum(data: bytes) -> bool:
    """Return whether the bytes of a readable record contain a checksum."""
    return as_object(parse_json(data)).get(CHECKSUM) is not None


def _checksum(record: Mapping[str, object]) -> str:
    text = json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def text_hash(value: object) -> str:
    """Return the SHA-256 of a JSON value, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def files_in(directory: Path) -> list[Path]:
    """Return the files of a folder that its SHA256SUMS lists, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != SUMS)


def sums_text(directory: Path, files: Iterable[Path] | None = None) -> str:
    """Return the contents of SHA256SUMS for a folder."""
    chosen = files_in(directory) if files is None else files
    return "".join(f"{file_sha256(p)}  {p.relative_to(directory).as_posix()}\n" for p in chosen)


def write_sums(directory: Path) -> None:
    """Write SHA256SUMS into a folder, with the checksums of all its files."""
    text = sums_text(directory).encode()
    with atomic_write(directory / SUMS) as file:
        file.write(text)


def parse_sums(text: str) -> dict[str, str]:
    """Parse the text of a SHA256SUMS. Return relative path → hex SHA-256.

    Raises:
        DamagedFileError: if a line is not a line of a SHA256SUMS, or its path leads out of the
            folder.
    """
    sums = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or Path(match[2]).is_absolute() or ".." in Path(match[2]).parts:
            raise DamagedFileError("core.invalid_checksum_line", file=SUMS, line=line[:80])
        sums[match[2]] = match[1]
    return sums


def read_sums(directory: Path) -> dict[str, str]:
    """Return the checksums of a folder by file name; empty if it has no SHA256SUMS.

    Raises:
        DamagedFileError: if SHA256SUMS is empty, is not text, or cannot be parsed (`parse_sums`).
    """
    try:
        text = (directory / SUMS).read_bytes().decode()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise DamagedFileError("core.checksums_not_text", path=directory / SUMS) from error
    if not text:
        raise DamagedFileError("core.checksums_empty", path=directory / SUMS)
    return parse_sums(text)


def damaged_files(directory: Path, sums: Mapping[str, str] | None = None) -> list[str]:
    """Return the files of a folder that are missing or differ from `sums`.

    By default, `sums` is read from the folder's SHA256SUMS.

    Raises:
        DamagedFileError: if SHA256SUMS itself cannot be read.
        PermissionError: if a file may not be read, so its contents are unknown.
    """
    known = read_sums(directory) if sums is None else sums
    return [name for name, digest in known.items() if not _holds(directory / name, digest)]


def _holds(path: Path, digest: str) -> bool:
    try:
        return path.is_file() and file_sha256(path) == digest
    except PermissionError:
        raise
    except OSError:  # a disk that cannot read it back
        return False
