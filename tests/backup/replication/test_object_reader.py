"""An object that is copied from this machine: whole, or a sentence that names it."""

import io
from pathlib import Path

import pytest

from infrastructure.backup.format.codec import compress
from infrastructure.backup.format.file_operations import CHUNK_BYTES
from infrastructure.backup.format.hashing import hash_of
from infrastructure.backup.format.manifest import Pack
from infrastructure.backup.replication.object_reader import OpenFile, PackedObject
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
    with pytest.raises(CheckpointError, match=rf"backup\.local_object_\w+\(hash={PACK.hash[:12]}"):
        packed_object(file).load()


def test_what_is_written_to_a_file_after_it_was_opened_is_none_of_its_bytes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    data = b"a" * CHUNK_BYTES + b"b" * 17
    path.write_bytes(data)
    with path.open("rb", buffering=0) as opened:
        file = OpenFile(path, opened)
        with path.open("ab") as writing:
            writing.write(b"more")
        assert [len(piece) for piece in file] == [CHUNK_BYTES, 17]
        assert b"".join(bytes(piece) for piece in file) == data
        assert bytes(file[-1]) == b"b" * 17
        for outside in (2, -3):
            with pytest.raises(IndexError):
                file[outside]


def test_an_empty_file_has_no_pieces() -> None:
    assert list(OpenFile(Path("file"), io.BytesIO())) == []
