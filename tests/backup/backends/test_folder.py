"""A folder on another disk."""

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.hashing import available_hash
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from tests.faults.store_history import next_save_works, tensors_at

FILE = Path("run-1/objects/ab/abcd")
CONTENT = Content.of([b"hello ", b"there"])


def test_a_folder_is_named_without_dots(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "d")
    assert open_place(f"{tmp_path}/d/../place").url == str((tmp_path / "place").resolve())
    assert open_place(f"{tmp_path}/link/place").url == f"{tmp_path}/link/place"


def test_a_store_in_a_place_is_a_store(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "backups")
    store = Store(Path("run-1"), place)
    for step in (1, 2):
        store.commit(tensors_at(step), {}, step=step)
    again = Store(Path("run-1"), open_place(str(tmp_path / "backups")))
    name, rejected = again.newest()
    assert (name, rejected) == (store.versions()[0], [])
    assert Store(tmp_path / "backups" / "run-1").newest()[0] == name
    assert next_save_works(place, Path("run-1"))


def test_a_hash_that_the_place_does_not_compare_is_not_taken_for_one(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "backups")
    place.write(FILE, [b"hello ", b"there"])
    own = Content.of([b"hello there"], place.hashes)
    assert place.confirm(FILE, own)
    assert [name for name, _ in own.hashes] == [available_hash()]
    with pytest.raises(ValueError, match=r"backup\.hash_not_declared.*hash_name=md5"):
        assert own.md5
    with pytest.raises(StorageError, match=r"backup\.read_back_mismatch"):
        place.confirm(FILE, Content.of([b"hello_there"], place.hashes))


def test_what_is_written_can_be_read_and_is_confirmed_by_a_reading_back(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "backups")
    place.write(FILE, [b"hello ", b"there"])
    assert b"".join(place.read(FILE)) == b"hello there"
    assert place.size(FILE) == CONTENT.size_bytes == 11
    assert place.confirm(FILE, CONTENT)
    assert place.names(FILE.parent) == ["abcd"]
    place.remove(FILE)
    assert place.names(FILE.parent) == []


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (b"hello ther", r"size_mismatch\(path=.*abcd, size=10, expected_size=11\)"),
        (b"hello therf", r"mismatch\(path=.*abcd\)"),
        (b"", r"size_mismatch\(path=.*abcd, size=0, expected_size=11\)"),
    ],
)
def test_other_bytes_are_not_confirmed_and_can_be_replaced(
    tmp_path: Path, damage: bytes, what: str
) -> None:
    place = FolderPlace(tmp_path)
    place.write(FILE, [damage])
    with pytest.raises(StorageError, match=rf"backup\.read_back_{what}"):
        place.confirm(FILE, CONTENT)
    place.write(FILE, [b"hello there"])
    assert place.confirm(FILE, CONTENT)


def test_what_is_gone_is_to_be_written_again(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"backup\.read_back_file_missing"):
        FolderPlace(tmp_path).confirm(FILE, CONTENT)


def test_a_disk_that_is_not_mounted_gets_no_folder(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "media" / "stick")
    for operation in (
        lambda: place.write(FILE, [b"x"]),
        lambda: place.names(FILE.parent),
        lambda: place.size(FILE),
        lambda: list(place.read(FILE)),
        lambda: place.confirm(FILE, CONTENT),
    ):
        with pytest.raises(OSError, match=r"backup\.path_missing\(path=.*media") as caught:
            operation()
        assert caught.value.errno == errno.ENOTCONN
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_to_shows_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere on a disk that is mounted for writing, so both are pretended."""
    root = tmp_path / "backups"
    FolderPlace(root).require_reachable()  # which can be made
    root.write_text("a file")
    with pytest.raises(NotADirectoryError):
        FolderPlace(root).require_reachable()
    root.unlink()
    monkeypatch.setattr(os, "access", lambda folder, _: folder != tmp_path)
    with pytest.raises(PermissionError):
        FolderPlace(root).require_reachable()
    root.mkdir()
    FolderPlace(root).require_reachable()  # it is there: nothing has to be made beside it
    monkeypatch.setattr(os, "access", lambda *_: False)
    flags = os.statvfs(root).f_flag
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags | os.ST_RDONLY))
    with pytest.raises(OSError, match="ead-only") as caught:
        FolderPlace(root).require_reachable()
    assert caught.value.errno == errno.EROFS


def test_a_disk_that_went_away_is_no_empty_disk(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "stick")
    place.write(FILE, [b"x"])
    shutil.rmtree(tmp_path / "stick")
    for operation in (lambda: place.names(FILE.parent), lambda: place.write(FILE, [b"x"])):
        with pytest.raises(OSError, match=r"backup\.path_missing\(path=.*stick") as caught:
            operation()
        assert caught.value.errno == errno.ENOTCONN
    assert not (tmp_path / "stick").exists()


def test_a_folder_that_was_read_does_not_go_missing(tmp_path: Path) -> None:
    (tmp_path / "stick").mkdir()
    place = FolderPlace(tmp_path / "stick")
    assert place.names(Path()) == []
    (tmp_path / "stick").rmdir()
    with pytest.raises(OSError, match=r"backup\.path_missing\(path=.*stick\)"):
        place.names(Path())


def test_a_new_folder_holds_nothing_yet(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        place.names(Path("run-1/versions"))
    assert Store(Path("run-1"), place).versions() == []
    assert (place.free_bytes(Path("run-1")) or 0) > 0


def test_no_path_leads_out(tmp_path: Path) -> None:
    for path in (Path("../x"), Path("run/../../x"), Path("/etc/passwd")):
        with pytest.raises(ValueError, match=r"backup\.path_outside_destination"):
            FolderPlace(tmp_path).size(path)


class Recorded(FileOperations):
    """What is done, in order; `failing` fails once."""

    def __init__(self, failing: str | None = None) -> None:
        self.done: list[str] = []
        self.failing = failing

    def __getattribute__(self, name: str) -> object:
        if name in ("write", "sync_file", "rename", "link", "sync_directory"):
            self.done.append(name)
            if self.failing == name:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().__getattribute__(name)


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path) -> None:
    recorded = Recorded()
    place = FolderPlace(tmp_path, recorded)
    place.write(Path("file"), [b"x"])
    assert recorded.done == ["write", "sync_file", "rename", "sync_directory"]
    recorded.done.clear()
    assert place.create(Path("claim"), b"x") is True
    assert recorded.done == ["write", "sync_file", "link", "sync_directory"]
    recorded.done.clear()
    place.write(Path("a/b/file"), [b"x"])
    assert recorded.done[:3] == ["sync_directory", "sync_directory", "write"]


@pytest.mark.parametrize("failing", ["write", "sync_file", "rename"])
def test_half_a_file_never_has_the_name(tmp_path: Path, failing: str) -> None:
    FolderPlace(tmp_path).write(Path("file"), [b"old"])
    with pytest.raises(OSError, match="output error"):
        FolderPlace(tmp_path, Recorded(failing)).write(Path("file"), [b"new"])
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_what_a_killed_copier_left_does_not_stop_the_next(tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"ha")
    place = FolderPlace(tmp_path)
    place.write(Path("file"), [b"half"])
    assert place.names(Path()) == ["file"]


@pytest.mark.parametrize("num_swept", [1, 2, 3])
def test_a_part_that_another_process_sweeps_is_written_again(
    num_swept: int, tmp_path: Path
) -> None:
    """Between being opened and being locked it looks like that of a killed writer."""

    class Swept(FileOperations):
        num_left = num_swept

        def sync_file(self, path: Path) -> None:
            super().sync_file(path)
            if self.num_left:
                self.num_left -= 1
                path.unlink()

    place = FolderPlace(tmp_path / "place", operations=Swept())
    if num_swept == 3:
        with pytest.raises(FileNotFoundError):
            place.write(Path("a/b"), [b"hello"])
        return
    place.write(Path("a/b"), [b"hello"])
    assert b"".join(place.read(Path("a/b"))) == b"hello"


def test_the_same_disk_is_named_and_another_is_not(tmp_path: Path) -> None:
    url = tmp_path / "backups"
    assert FolderPlace(url).caution(tmp_path) == f"backup.destination_on_same_disk(url={url})"
    assert FolderPlace(tmp_path / "not/mounted").caution(tmp_path) is None
    folders = (Path("/dev/shm"), Path(__file__).parent)
    other = next(f for f in folders if f.stat().st_dev != tmp_path.stat().st_dev)
    assert FolderPlace(other / "backups").caution(tmp_path) is None


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "folder_permission"),
        (errno.EPERM, "folder_permission"),
        (errno.EROFS, "folder_read_only"),
        (errno.ENOTCONN, "mount_disk"),
        (errno.ESTALE, "remount_disk"),
        (errno.ENOENT, "folder_missing"),
        (errno.ENOTDIR, "not_a_folder"),
        (errno.EFBIG, "file_too_large"),
        (errno.EIO, "disk_errors"),
        (errno.ELOOP, "check_write_access"),
        (None, "check_write_access"),
    ],
)
def test_every_error_has_a_remedy(tmp_path: Path, number: int | None, remedy: str) -> None:
    error = OSError("x") if number is None else OSError(number, "x")
    assert FolderPlace(tmp_path).advice(error) == f"backup.advice_{remedy}(url={tmp_path})"


@pytest.mark.parametrize(
    ("kind", "is_named"), [("fuse.rclone", True), ("fuseblk", False), ("nfs4", False)]
)
def test_a_mount_that_may_answer_too_early_is_named(
    tmp_path: Path, kind: str, is_named: bool
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nremote: /dev/shm {kind} rw 0 0\n")
    (tmp_path / "other").mkdir()
    place = FolderPlace(Path("/dev/shm/backups"), mounts=mounts)
    caution = f"backup.fuse_mount_may_cache(url=/dev/shm/backups, kind={kind})"
    assert (place.caution(tmp_path) == caution) is is_named


@pytest.mark.parametrize(
    ("kind", "evidence"), [("fuse.rclone", Evidence.MOUNT), ("ext4", Evidence.READ_BACK)]
)
def test_a_mount_that_may_cache_is_weaker_evidence(
    tmp_path: Path, kind: str, evidence: Evidence
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"remote: {tmp_path} {kind} rw 0 0\n")
    place = FolderPlace(tmp_path / "backups", mounts=mounts)
    place.write(FILE, [b"hello ", b"there"])
    assert place.confirm(FILE, CONTENT) is evidence


class CallRecorder(FileOperations):
    """What is asked of the file system, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattribute__(self, name: str) -> object:
        if name in ("size", "forget_cached", "read_back", "read"):
            self.done.append(name)
        return super().__getattribute__(name)


def test_what_is_read_back_comes_from_the_disk_and_not_from_memory(tmp_path: Path) -> None:
    files = CallRecorder()
    place = FolderPlace(tmp_path, files)
    place.write(FILE, [b"hello there"])
    files.done.clear()
    assert place.confirm(FILE, CONTENT)
    assert files.done == ["size", "read_back", "forget_cached"]


def test_what_killed_writers_left_goes_and_what_a_living_one_writes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = FolderPlace(tmp_path / "backups")
    place.identify()
    place.write(FILE, [b"hello there"])
    folder = place.at(FILE).parent
    for name in ("dead.part", "living.part", "old.part"):
        (folder / name).write_bytes(b"hel")
    probe = place.root / ".temper-place/probe-0123abcd"
    probe.write_bytes(b"may be removed")
    with (folder / "living.part").open("rb") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        place.sweep(Path("run-1"))
        left = {path.name for path in folder.iterdir()}
        assert left == {"abcd", "living.part"}
        assert not probe.exists()
        place.sweep(Path("another-run"))
    (folder / "old.part").write_bytes(b"hel")
    (folder / "newer.part").write_bytes(b"hel")
    for name, age in (("old.part", 86500), ("newer.part", 86300)):
        os.utime(folder / name, (time.time() - age,) * 2)

    def no_locks(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    place.sweep(Path("run-1"))
    left = {path.name for path in folder.iterdir()}
    assert left == {"abcd", "living.part", "newer.part"}, "without locks a day's age has to do"
    assert place.confirm(FILE, Content.of([b"hello there"]))


def test_a_file_is_locked_while_it_is_written(tmp_path: Path) -> None:
    seen = []

    class Pieces(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"hello "
            FolderPlace(tmp_path / "backups").sweep(Path("run-1"))
            seen.append(place.at(FILE).with_name("abcd.part").exists())
            yield b"there"

    place = FolderPlace(tmp_path / "backups")
    place.write(FILE, Pieces([b"", b""]))
    assert seen == [True]
    assert place.confirm(FILE, CONTENT)


def test_of_many_that_create_a_file_one_does_and_it_is_whole(tmp_path: Path) -> None:
    places = [FolderPlace(tmp_path / "backups") for _ in range(8)]
    barrier = threading.Barrier(len(places))

    def create(number: int) -> bool | None:
        barrier.wait()
        return places[number].create(FILE, b"%d" % number * 1000)

    with ThreadPoolExecutor(len(places)) as threads:
        answers = list(threads.map(create, range(len(places))))
    assert sorted(answers, key=bool) == [False] * 7 + [True]
    assert b"".join(places[0].read(FILE)) == b"%d" % answers.index(True) * 1000
    assert places[0].names(FILE.parent) == [FILE.name]


class WithoutLinks(FileOperations):
    def __init__(self, number: int) -> None:
        self.number = number

    def link(self, source: Path, target: Path) -> None:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    "number", [errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO]
)
def test_where_no_file_gets_a_second_name_none_is_created(tmp_path: Path, number: int) -> None:
    place = FolderPlace(tmp_path / "backups", WithoutLinks(number))
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            place.create(FILE, b"x")
    else:
        assert place.create(FILE, b"x") is None
    assert place.names(FILE.parent) == []


def test_below_a_mount_that_a_program_plays_nothing_is_created(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"remote: {tmp_path} fuse.rclone rw 0 0\n")
    assert FolderPlace(tmp_path / "backups", mounts=mounts).create(FILE, b"x") is None
    assert not (tmp_path / "backups").exists()
