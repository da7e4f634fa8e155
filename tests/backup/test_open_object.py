"""An object that is copied from this machine: whole, or a sentence that names it."""

import io
from pathlib import Path

import pytest

from infrastructure.backup.codec import compress
from infrastructure.backup.hashing import hash_of
from infrastructure.backup.manifest import Pack
from infrastructure.backup.open_object import PackedObject
from infrastructure.core.errors import CheckpointError

DATA = bytes(10_000)
PACK = Pack(hash_of("sha256", [DATA]), len(DATA))


def packed_object(file: bytes) -> PackedObject:
    return PackedObject(Path("object"), io.BytesIO(file), PACK, "sha256")


def test_a_compressed_object_is_given_in_both_forms() -> None:
    packed, plain = packed_object(compress(DATA)).load()
    assert packed == compress(DATA)
    assert b"".join(bytes(piece) for piece in plain) == DATA


@pytest.mark.parametrize("file", [b"", b"no compressed object", compress(bytes(9_999) + b"a")])
def test_a_compressed_object_that_is_damaged_is_named(file: bytes) -> None:
    with pytest.raises(CheckpointError, match=f"object {PACK.hash[:12]}"):
        packed_object(file).load()
