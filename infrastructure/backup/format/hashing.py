"""The hash that names objects and versions: BLAKE3, or SHA-256 if blake3 is not installed."""

import hashlib
import re
from collections.abc import Iterable
from typing import Protocol

from infrastructure.backup.format.file_operations import Buffer
from infrastructure.core.errors import InputError

HEX_HASH = re.compile(r"[0-9a-f]{64}")


class Digest(Protocol):
    """The common interface of the objects of hashlib and blake3."""

    def update(self, data: Buffer, /) -> object: ...

    def hexdigest(self) -> str: ...


def available_hash() -> str:
    """Return the name of the hash that a new store uses."""
    try:
        import blake3  # noqa: F401
    except ImportError:
        return "sha256"
    return "blake3"


def new_digest(name: str) -> Digest:
    """Return an empty digest of 256 bits.

    Raises:
        ValueError: if the hash is unknown, or its package is missing.
    """
    if name == "sha256":
        return hashlib.sha256()
    if name == "blake3":
        try:
            import blake3
        except ImportError as error:
            raise InputError("backup.blake3_missing") from error
        return blake3.blake3()
    raise InputError("backup.unknown_hash", hash_name=name)


def hash_of(name: str, buffers: Iterable[Buffer]) -> str:
    """Return the hex hash of the concatenated `buffers`."""
    digest = new_digest(name)
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()
