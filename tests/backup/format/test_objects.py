"""How an object comes to be on the disk."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.backup.format.objects import ObjectFiles
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError, StorageError


class Recorded(FileOperations):
    """What is done, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.done.append(("write", path.parent.name))
        super().write(path, buffers)

    def sync_file(self, path: Path) -> None:
        self.done.append(("sync_file", path.parent.name))
        super().sync_file(path)

    def rename(self, source: Path, target: Path) -> None:
        self.done.append(("rename", target.name))
        super().rename(source, target)

    def sync_directory(self, directory: Path) -> None:
        self.done.append(("sync_directory", directory.name))
        super().sync_directory(directory)

    def forget_cached(self, path: Path) -> None:
        self.done.append(("forget_cached", path.name))
        super().forget_cached(path)

    def read_back(self, path: Path) -> Iterator[Buffer]:
        self.done.append(("read_back", path.name))
        return super().read_back(path)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    Store(tmp_path / "store").prepare()
    return Recorded()


def test_bytes_come_first_and_the_name_second_and_both_are_read_back_from_the_disk(
    tmp_path: Path, recorded: Recorded
) -> None:
    files = ObjectFiles(tmp_path / "store", recorded)
    pack = files.write_pack([b"some bytes"], "blake3")
    assert recorded.done == [
        ("sync_directory", "objects"),
        ("write", "tmp"),
        ("sync_file", "tmp"),
        ("rename", pack.hash),
        ("sync_directory", pack.hash[:2]),
        ("read_back", pack.hash),
        ("forget_cached", pack.hash),
    ]
    assert files.is_whole(pack, "blake3")


class Forgetful(FileOperations):
    """The disk holds other bytes than the memory above it."""

    def forget_cached(self, path: Path) -> None:
        path.write_bytes(bytes(path.stat().st_size))


def test_a_disk_that_keeps_other_bytes_is_found_out(tmp_path: Path, recorded: Recorded) -> None:
    files = ObjectFiles(tmp_path / "store", Forgetful())
    with pytest.raises(StorageError, match=r"backup\.write_not_kept"):
        files.write_pack([b"some bytes"], "blake3")
    assert not [path for path in (tmp_path / "store" / "objects").rglob("*") if path.is_file()]


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_compressed_object_of_no_possible_size_is_not_there(
    is_empty: bool, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    name = store.commit({"model/w": TensorBytes("U8", (10_000,), bytes(10_000))}, {}, step=1)
    (pack,) = store.read(name).packs
    store.objects.path_of(pack.hash).unlink()
    compressed = store.objects.compressed_path_of(pack.hash)
    compressed.write_bytes(bytes(1))
    store.objects.require_there(pack)
    compressed.write_bytes(bytes(0 if is_empty else pack.size_bytes + 1))
    with pytest.raises(CheckpointError, match=r"backup\.object_missing_or_truncated"):
        store.objects.require_there(pack)


class Refusing(FileOperations):
    """A disk that has become full, and on which nothing can be removed."""

    def sync_file(self, path: Path) -> None:
        raise OSError("the disk is full")

    def remove(self, path: Path) -> None:
        raise OSError("it cannot be removed")


def test_what_went_wrong_first_is_reported_where_the_rest_cannot_be_removed_either(
    tmp_path: Path,
) -> None:
    Store(tmp_path / "store").prepare()
    with pytest.raises(OSError, match="the disk is full"):
        ObjectFiles(tmp_path / "store", Refusing()).write_pack([b"some bytes"], "blake3")
