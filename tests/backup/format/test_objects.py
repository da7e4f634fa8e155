"""How an object comes to be on the disk."""

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.backup.format.hashing import hash_of
from infrastructure.backup.format.manifest import MAX_MANIFEST_BYTES, Pack
from infrastructure.backup.format.objects import SLACK_BYTES, ObjectFiles
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
    path = files.path_of(hash_of("blake3", [b"some bytes"]))
    with pytest.raises(StorageError, match=rf"backup\.write_not_kept\(path={path}\)"):
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
    problem = rf"backup\.object_missing_or_truncated\(hash={pack.hash[:12]}\)"
    with pytest.raises(CheckpointError, match=problem):
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


class Sized(FileOperations):
    """Claims `size_bytes` of each file, and `free` bytes of the disk."""

    def __init__(self, size_bytes: int = 0, free: int | None = None) -> None:
        self.size_bytes, self.free = size_bytes, free

    def size(self, path: Path) -> int:
        return self.size_bytes

    def free_bytes(self, directory: Path) -> int | None:
        return self.free


def test_no_more_is_read_of_a_small_file_than_a_manifest_may_hold(tmp_path: Path) -> None:
    path = tmp_path / f"{'7' * 26}8.json"
    path.write_bytes(b"{}")
    assert ObjectFiles(tmp_path, Sized(MAX_MANIFEST_BYTES)).read_small(path) == b"{}"
    size = f"size={MAX_MANIFEST_BYTES + 1}"
    for operations, name, problem in (
        (
            Sized(MAX_MANIFEST_BYTES + 1),
            path.name,
            f"store_file_too_large(path={'7' * 26}, {size})",
        ),
        (Sized(), f"{'9' * 30}.json", f"store_file_missing(path={'9' * 26})"),
        (Sized(), "", f"file_unreadable(path={tmp_path}, error=[Errno 21] Is a directory: "),
    ):
        with pytest.raises(CheckpointError) as raised:
            ObjectFiles(tmp_path, operations).read_small(tmp_path / name)
        assert str(raised.value).startswith(f"backup.{problem}")


@pytest.mark.parametrize(
    ("free", "needed", "is_enough"),
    [
        (SLACK_BYTES + (3 << 20), 3 << 20, True),
        (SLACK_BYTES + (3 << 20) - 1, 3 << 20, False),
        (None, 1 << 60, True),
    ],
)
def test_a_write_leaves_a_reserve(
    tmp_path: Path, free: int | None, needed: int, is_enough: bool
) -> None:
    files = ObjectFiles(tmp_path, Sized(free=free))
    if is_enough:
        files.require_space(needed)
        return
    with pytest.raises(StorageError) as raised:
        files.require_space(needed)
    values = f"root={tmp_path}, free_mib={67 - 2**-20}, needed_mib=3.0, reserve_mib=64.0"
    assert str(raised.value) == f"backup.no_space_for_checkpoint({values})"
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        (None, "object_is_missing()"),
        (b"some byte", "object_size_mismatch(size=9, expected_size=10)"),
        (b"other byte", "object_bytes_changed()"),
    ],
)
def test_what_is_wrong_with_an_object_is_named(
    tmp_path: Path, held: bytes | None, problem: str
) -> None:
    Store(tmp_path).prepare()
    files = ObjectFiles(tmp_path, FileOperations())
    pack = files.write_pack([b"some ", b"bytes"], "sha256")
    assert pack == Pack(hash_of("sha256", [b"some bytes"]), 10)
    assert bytes(files.read(pack, "sha256")) == b"some bytes"
    path = files.path_of(pack.hash)
    path.unlink()
    if held is not None:
        path.write_bytes(held)
    for call in (files.verify, files.read):
        with pytest.raises(CheckpointError) as raised:
            call(pack, "sha256")
        expected = f"object_problem(hash={pack.hash[:12]}, problem=backup.{problem})"
        assert str(raised.value) == f"backup.{expected}"
        assert isinstance(raised.value.__cause__, FileNotFoundError) is (held is None)
    assert not files.is_whole(pack, "sha256")
    assert files.write_pack([b"some bytes"], "sha256") == pack
    assert path.read_bytes() == b"some bytes"


def test_an_object_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    class Silent(FileOperations):
        def size(self, path: Path) -> int:
            raise OSError(errno.EIO, "no answer")

    files, pack = ObjectFiles(tmp_path, Silent()), Pack("0" * 64, 10)
    problem = "backup.object_cannot_be_read(error=[Errno 5] no answer)"
    for call, expected in (
        (lambda: files.verify(pack, "sha256"), f"object_problem(hash={'0' * 12}, {problem=!s})"),
        (
            lambda: files.require_there(pack),
            f"object_unreadable(hash={'0' * 12}, error=[Errno 5] no answer)",
        ),
    ):
        with pytest.raises(CheckpointError) as raised:
            call()
        assert str(raised.value) == f"backup.{expected}"
        assert isinstance(raised.value.__cause__, OSError)
