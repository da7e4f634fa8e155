"""An object that is copied from this machine: whole, or a sentence that names it."""

import io
from pathlib import Path

import pytest

from infrastructure.backup.format.codec import compress
from infrastructure.backup.format.file_operations import CHUNK_BYTES
from infrastructure.backup.format.hashing import hash_of
from infrastructure.backup.format.manifest import Pack
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.object_reader import (
    OpenFile,
    OpenObject,
    PackedObject,
    open_object,
)
from infrastructure.core.errors import CheckpointError

DATA = bytes(10_000)
PACK = Pack(hash_of("sha256", [DATA]), len(DATA))


def packed_object(file: bytes) -> PackedObject:
    return PackedObject(Path("object"), io.BytesIO(file), PACK, "sha256")


def test_a_compressed_object_is_given_in_both_forms() -> None:
    packed, plain = packed_object(compress(DATA)).load()
    assert packed == compress(DATA)
    assert b"".join(bytes(piece) for piece in plain) == DATA


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"", "problem({}, problem=backup.compressed_truncated())"),
        (bytes(100), "problem({}, problem=backup.not_a_compressed_object())"),
        (compress(bytes(9_999) + b"a"), "bytes_changed({})"),
    ],
)
def test_a_compressed_object_that_is_damaged_is_named(file: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        packed_object(file).load()
    assert str(raised.value) == f"backup.local_object_{problem}".format(f"hash={PACK.hash[:12]}")


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
        assert bytes(file[-1]) == bytes(file[1]) == b"b" * 17
        assert bytes(file[-2]) == bytes(file[0]) == data[:CHUNK_BYTES]
        assert [len(piece) for piece in file[1:]] == [17]
        assert len(file[:1]) == len(file[::-2]) == 1
        for outside in (2, -3):
            with pytest.raises(IndexError):
                file[outside]


def test_an_empty_file_has_no_pieces() -> None:
    assert list(OpenFile(Path("file"), io.BytesIO())) == []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_an_object_is_opened_in_the_form_in_which_it_lies(store: Store) -> None:
    for compresses, kind in ((False, OpenObject), (True, PackedObject)):
        store.objects.compresses = compresses
        store.prepare()
        pack = store.objects.write_pack([bytes([compresses]) * 10_000], "sha256")
        file = open_object(store, pack, "sha256")
        assert type(file) is kind
        whole = file.load()[1] if isinstance(file, PackedObject) else [*file]
        assert b"".join(bytes(piece) for piece in whole) == bytes([compresses]) * 10_000
        file.close()
        assert file._file.closed


def test_the_last_piece_of_a_changed_object_is_held_back(store: Store) -> None:
    data = bytes(CHUNK_BYTES) + b"end"
    store.prepare()
    pack = store.objects.write_pack([data], "sha256")
    store.objects.path_of(pack.hash).write_bytes(data[:-1] + b"?")
    file, pieces = open_object(store, pack, "sha256"), []
    with pytest.raises(CheckpointError) as raised:
        pieces.extend(file)
    file.close()
    assert str(raised.value) == f"backup.local_file_bytes_changed(path={pack.hash[:12]})"
    assert [len(piece) for piece in pieces] == [CHUNK_BYTES]


@pytest.mark.parametrize(
    ("size_bytes", "problem"),
    [
        (9, "truncated(hash={})"),
        (11, "truncated(hash={})"),
        (None, "missing(hash={}, error=[Errno 2] No such file or directory: '{}.zst')"),
        (-1, "unreadable(hash={}, error=[Errno 21] Is a directory: '{}')"),
    ],
)
def test_an_object_that_cannot_be_copied_is_named(
    store: Store, size_bytes: int | None, problem: str
) -> None:
    path = store.objects.path_of(PACK.hash)
    path.parent.mkdir(parents=True)
    if size_bytes == -1:
        path.mkdir()
    elif size_bytes is not None:
        path.write_bytes(bytes(size_bytes))
    with pytest.raises(CheckpointError) as raised:
        open_object(store, Pack(PACK.hash, 10), "sha256")
    assert str(raised.value) == f"backup.local_object_{problem.format(PACK.hash[:12], path)}"


def test_a_file_that_cannot_be_read_is_named() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError("no answer")

    with pytest.raises(CheckpointError) as raised:
        list(OpenFile(Path("run/file"), Broken(b"x")))
    assert str(raised.value) == "backup.file_unreadable(path=run/file, error=no answer)"


class Little(io.BytesIO):
    """Reads no more than two bytes at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(2, size or 0))


def test_a_piece_is_read_to_its_end() -> None:
    assert [bytes(piece) for piece in OpenFile(Path("x"), Little(b"12345"))] == [b"12345"]
