"""Files that are either whole or not there: atomic writes, hashes, directory syncs."""

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

HASH_CHUNK_BYTES = 1 << 20


def sync_directory(directory: Path) -> None:
    """Make renames inside `directory` survive a power cut (POSIX asks for this separately)."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary neighbour of `path` for writing; on success it becomes `path`.

    The bytes are on the disk before the name is, so a reader never sees half a file. On an
    exception the temporary file is removed and `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) atomically."""
    with atomic_write(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Refuses NaN, which is not JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A temporary neighbour of `directory` that takes its name when everything is on the disk.

    An older directory of that name steps aside just before and goes only after. On an exception the
    temporary one is removed and the older one stays.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    part = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.part")
    aside = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.old")
    part.mkdir()
    try:
        yield part
        _sync_tree(part)
        if directory.exists():
            directory.rename(aside)
        part.rename(directory)
    except BaseException:
        if aside.exists() and not directory.exists():
            aside.rename(directory)
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_directory(directory.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _sync_tree(directory: Path) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_directory(path)
    sync_directory(directory)


def file_sha256(path: Path) -> str:
    """The hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
