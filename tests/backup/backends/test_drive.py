"""Google Drive as Colab mounts it: a real folder whose extended attributes the tests set."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.backends.drive import (
    ID_ATTRIBUTE,
    DrivePlace,
    drive_folder,
    is_on_drive,
    read_drive_id,
)
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format import direct_io
from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from tests.faults.store_history import tensors_at

FILE = Path("run-1/objects/ab/abcd")
CONTENT = Content.of([b"hello there"])


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """Where Drive is mounted."""
    top = tmp_path / "drive" / "MyDrive"
    top.mkdir(parents=True)
    try:
        os.setxattr(top, ID_ATTRIBUTE, b"0ABCroot")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    return tmp_path / "drive"


@pytest.fixture
def place(mount: Path) -> DrivePlace:
    return DrivePlace(mount / "MyDrive" / "temper" / "backups")


def upload(path: Path, drive_id: bytes = b"1xYz") -> None:
    os.setxattr(path, ID_ATTRIBUTE, drive_id)


def test_a_file_counts_only_when_drive_has_it(place: DrivePlace) -> None:
    place.write(FILE, [b"hello ", b"there"])
    assert not place.confirm(FILE, CONTENT)  # no id yet
    upload(place.at(FILE), b"local-7")
    assert not place.confirm(FILE, CONTENT)
    upload(place.at(FILE))
    assert place.confirm(FILE, CONTENT) is Evidence.MOUNT
    assert b"".join(place.read(FILE)) == b"hello there"


def test_where_drive_gives_no_status_nothing_is_ever_safe(tmp_path: Path) -> None:
    (tmp_path / "MyDrive").mkdir()
    place = DrivePlace(tmp_path / "MyDrive" / "backups")
    place.write(FILE, [b"hello there"])
    assert not place.confirm(FILE, CONTENT)
    folder = tmp_path / "MyDrive"
    assert place.caution(tmp_path) == f"backup.drive_reports_no_uploads(folder={folder})"
    folder.rename(tmp_path / "away")
    assert place.caution(tmp_path) is None, "the copier will report it"


def test_where_drive_gives_its_status_there_is_no_caution(place: DrivePlace, mount: Path) -> None:
    assert place.caution(mount) is None


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (b"hello ther", "mounted_file_size_mismatch(path={}, size=10, expected_size=11)"),
        (b"hello therf", "read_back_mismatch(path={})"),
    ],
)
def test_an_uploaded_file_of_other_bytes_is_wrong(
    place: DrivePlace, damage: bytes, problem: str
) -> None:
    place.write(FILE, [damage])
    upload(place.at(FILE))
    with pytest.raises(StorageError) as raised:
        place.confirm(FILE, CONTENT)
    assert str(raised.value) == f"backup.{problem.format(place.at(FILE))}"


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/content/drive/MyDrive/x/MyDrive", "/content/drive/MyDrive"),
        ("/Users/me/My Drive", "/Users/me/My Drive"),
        ("/drive/Shareddrives/team/x/y", "/drive/Shareddrives/team"),
        ("/drive/Shared drives/team", "/drive/Shared drives/team"),
        ("/drive/.shortcut-targets-by-id/7/x", "/drive/.shortcut-targets-by-id/7"),
        ("/drive/Shareddrives", None),
        ("/drive/mydrive/x", None),
    ],
)
def test_the_top_folder_of_a_drive_is_known_by_its_name(path: str, folder: str | None) -> None:
    found = drive_folder(Path(path))
    assert found == (None if folder is None else Path(folder))
    anchor = DrivePlace(Path(path)).anchor
    assert anchor == (Path(path).parent if folder is None else Path(folder))


def test_a_drive_is_slow_compares_one_hash_and_is_probed_without_a_file(
    place: DrivePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (place.is_slow, [*place.hashes]) == (True, ["sha256"])
    place.root.mkdir(parents=True)
    place.probe()
    place.sweep(Path("run-1"))
    assert [*place.root.iterdir()] == []
    monkeypatch.setattr(os, "access", lambda folder, how: (folder, how) != (place.root, os.W_OK))
    with pytest.raises(PermissionError):
        place.probe()


def test_what_replaces_a_file_is_not_taken_for_uploaded(place: DrivePlace) -> None:
    place.write(FILE, [b"hello therf"])
    upload(place.at(FILE))
    place.write(FILE, [b"hello there"])
    assert not place.confirm(FILE, CONTENT)
    upload(place.at(FILE))
    assert place.confirm(FILE, CONTENT)


def test_a_file_is_read_back_once_and_again_after_it_was_replaced(mount: Path) -> None:
    operations = Recorded()
    place = DrivePlace(mount / "MyDrive" / "backups", operations)
    for reads in (1, 2):
        place.write(FILE, [b"hello there"])
        upload(place.at(FILE))
        assert place.confirm(FILE, CONTENT)
        assert place.confirm(FILE, CONTENT)
        assert operations.done.count("read_back") == reads


def test_a_file_that_drive_does_not_show_may_come_back(place: DrivePlace) -> None:
    place.write(FILE, [b"hello there"])
    place.at(FILE).unlink()
    assert not place.confirm(FILE, CONTENT)


class Recorded(FileOperations):
    """What is done, in order, and at what size files are removed."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattribute__(self, name: str) -> object:
        if name in ("read_back", "write", "sync_file", "rename", "sync_directory"):
            self.done.append(name)
        return super().__getattribute__(name)

    def remove(self, path: Path) -> None:
        self.done.append(f"remove {path.stat().st_size} bytes")
        super().remove(path)


def test_what_drive_keeps_in_memory_is_not_passed_by(
    place: DrivePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[bool] = []
    monkeypatch.setattr(direct_io, "set_direct", lambda _, wanted: changed.append(wanted))
    data = bytes(direct_io.BLOCK_BYTES)
    place.write(FILE, [data])
    upload(place.at(FILE))
    assert place.confirm(FILE, Content.of([data]))
    assert changed == []


def test_files_get_their_names_at_once_and_go_empty_to_the_trash(mount: Path) -> None:
    operations = Recorded()
    place = DrivePlace(mount / "MyDrive" / "backups", operations)
    place.write(FILE, [b"hello there"])
    place.remove(FILE)
    assert operations.done == ["write", "sync_file", "remove 0 bytes"]
    with pytest.raises(FileNotFoundError):
        place.remove(FILE)


class Full(FileOperations):
    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        super().write(path, [b"half"])
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def test_half_a_file_does_not_keep_the_name(mount: Path) -> None:
    place = DrivePlace(mount / "MyDrive" / "backups", Full())
    with pytest.raises(OSError, match="quota") as caught:
        place.write(FILE, [b"hello there"])
    assert place.names(FILE.parent) == []
    assert place.advice(caught.value).startswith("backup.advice_drive_full(")


def lost_connections(place: DrivePlace) -> list[OSError]:
    errors = []
    for operation in (
        lambda: place.names(FILE.parent),
        lambda: place.write(FILE, [b"x"]),
        lambda: place.size(FILE),
        lambda: list(place.read(FILE)),
        lambda: place.confirm(FILE, CONTENT),
        lambda: place.remove(FILE),
    ):
        with pytest.raises(OSError, match=r"path_missing\(|drive_connection_lost\(") as caught:
            operation()
        errors.append(caught.value)
    return errors


def test_a_drive_that_is_gone_is_no_empty_drive(place: DrivePlace, mount: Path) -> None:
    place.write(FILE, [b"hello there"])
    shutil.rmtree(mount)
    assert {error.errno for error in lost_connections(place)} == {errno.ENOTCONN}
    assert not mount.exists()


def test_a_drive_that_was_never_mounted_gets_no_folder(tmp_path: Path) -> None:
    place = DrivePlace(tmp_path / "drive" / "MyDrive" / "backups")
    for error in lost_connections(place):
        assert error.errno == errno.ENOTCONN
        advice = place.advice(error)
        assert advice.startswith("backup.advice_remount_drive(")
        assert advice.endswith(f"mount={tmp_path / 'drive'})")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_does_not_go_missing(place: DrivePlace) -> None:
    place.write(FILE, [b"hello there"])
    shutil.rmtree(place.root / "run-1")
    for operation in (
        lambda: place.names(FILE.parent),
        lambda: place.names(Path("run-1")),
        lambda: place.write(FILE, [b"x"]),
    ):
        with pytest.raises(OSError, match=r"backup\.drive_connection_lost\(path=.*run-1"):
            operation()
    assert not (place.root / "run-1").exists()
    with pytest.raises(FileNotFoundError):
        place.names(Path("run-2/versions"))


def test_a_folder_that_was_listed_does_not_go_missing(place: DrivePlace) -> None:
    place.write(FILE, [b"hello there"])
    other = DrivePlace(place.root)
    assert other.names(FILE.parent) == [FILE.name]
    shutil.rmtree(place.root / "run-1")
    with pytest.raises(OSError, match=r"backup\.drive_connection_lost\(path=.*run-1"):
        other.names(FILE.parent)


class Disconnected(FileOperations):
    def size(self, path: Path) -> int:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), str(path))


def test_a_transport_endpoint_that_is_not_connected_is_named(mount: Path) -> None:
    place = DrivePlace(mount / "MyDrive" / "backups", Disconnected())
    with pytest.raises(OSError, match="not connected") as caught:
        place.confirm(FILE, CONTENT)
    assert place.advice(caught.value).startswith("backup.advice_remount_drive(")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "drive_and_disk_full"),
        (errno.EDQUOT, "drive_full"),
        (errno.ENOTCONN, "remount_drive"),
        (errno.ENOENT, "remount_drive"),
        (errno.EIO, "drive_limit"),
        (errno.EACCES, "drive_permission"),
        (errno.EPERM, "drive_permission"),
        (errno.EROFS, "drive_read_only"),
        (errno.ELOOP, "check_write_access"),
        (None, "check_write_access"),
    ],
)
def test_every_error_has_a_remedy(
    place: DrivePlace, mount: Path, number: int | None, remedy: str
) -> None:
    error = OSError("x") if number is None else OSError(number, "x")
    assert place.advice(error) == f"backup.advice_{remedy}(url={place.root}, mount={mount})"


def test_a_store_on_a_drive_is_a_store(place: DrivePlace) -> None:
    store = Store(Path("run-1"), place)
    for step in (1, 2):
        store.commit(tensors_at(step), {}, step=step)
    name, rejected = Store(Path("run-1"), DrivePlace(place.root)).newest()
    assert (name, rejected) == (store.versions()[0], [])
    store.remove_all_but(store.versions()[:1])
    assert Store(Path("run-1"), DrivePlace(place.root)).newest()[0] == name


def test_an_error_of_the_mount_is_not_no_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert read_drive_id(tmp_path / "file") is None
    with pytest.raises(FileNotFoundError):
        read_drive_id(tmp_path / "none")
    for number in (errno.ENODATA, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EIO):

        def refuse(path: Path, name: str, number: int = number) -> bytes:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "getxattr", refuse)
        if number == errno.EIO:
            with pytest.raises(OSError, match="output error"):
                read_drive_id(tmp_path / "file")
        else:
            assert read_drive_id(tmp_path / "file") is None
    monkeypatch.delattr(os, "getxattr")
    assert read_drive_id(tmp_path / "none") is None, "as on macOS"


def test_a_folder_on_a_drive_is_known_by_its_id_or_its_mount(mount: Path, tmp_path: Path) -> None:
    assert isinstance(open_place(str(mount / "MyDrive" / "x")), DrivePlace)
    assert isinstance(open_place(f"drive:{tmp_path}/x"), DrivePlace)
    other = tmp_path / "elsewhere" / "MyDrive"
    other.mkdir(parents=True)
    assert type(open_place(str(other / "x"))) is FolderPlace
    assert type(open_place(f"file://{mount}/MyDrive/x")) is FolderPlace
    assert isinstance(open_place(str(tmp_path / "not-mounted" / "MyDrive" / "x")), DrivePlace)


@pytest.mark.parametrize(
    ("line", "is_drive"),
    [
        ("drive {} fuse.drive rw,nosuid,nodev,relatime 0 0", True),
        ("drive {} fuse rw 0 0", True),
        ("/dev/sda1 {} ext4 rw 0 0", False),
        ("server:/x {} nfs rw 0 0", False),
        ("sshfs {} fuse.sshfs rw 0 0", False),
    ],
)
def test_a_mount_of_drive_is_known_by_its_line(tmp_path: Path, line: str, is_drive: bool) -> None:
    folder = tmp_path / "my drive"
    (folder / "Shareddrives" / "team").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    where = str(folder).replace(" ", "\\040")
    mounts.write_text("overlay / overlay rw 0 0\n" + line.format(where) + "\n")
    assert is_on_drive(folder / "Shareddrives" / "team" / "x", mounts) == is_drive
    assert not is_on_drive(folder / "x", mounts)


def test_where_mounts_are_unknown_a_folder_named_my_drive_counts_as_a_drive(tmp_path: Path) -> None:
    (tmp_path / "My Drive").mkdir()  # as on macOS, where a program uploads it later too
    assert is_on_drive(tmp_path / "My Drive" / "x", tmp_path / "no-mounts")
    assert not is_on_drive(tmp_path / "x", tmp_path / "no-mounts")


def test_the_folder_of_a_shared_drive_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "Shareddrives").mkdir()
    place = DrivePlace(tmp_path / "Shareddrives" / "team" / "x")
    with pytest.raises(OSError, match=r"backup\.path_missing\(path=.*team"):
        place.write(FILE, [b"x"])


def test_a_file_that_the_mount_denies_is_not_removed(
    place: DrivePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that there is none, then that there is one."""
    place.write(FILE, [b"hello there"])
    monkeypatch.setattr(place, "_is_there", lambda path: path.is_dir())
    with pytest.raises(FileExistsError):
        place.write(FILE, [b"something else"])
    assert place.at(FILE).read_bytes() == b"hello there"


def test_nothing_is_created_on_a_mount_that_has_its_own_names(place: DrivePlace) -> None:
    assert place.create(Path("run-1/claims/1"), b"x") is None  # type: ignore[func-returns-value]
    with pytest.raises(FileNotFoundError):
        place.names(Path("run-1/claims"))
