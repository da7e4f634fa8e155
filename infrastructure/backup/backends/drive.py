"""Google Drive as Colab mounts it (DriveFS, a FUSE file system).

Written files are first stored on this machine's disk. DriveFS uploads them later, in no particular
order, and some not at all. DriveFS shows which files are uploaded in the extended attribute
`user.drive.id`, which begins with `local` until the file is in the cloud. (Google does not document
this; public code relies on it.) If that attribute is missing, nothing is ever confirmed, because
reading back would only show this machine's own copy. Backups are then copied but never counted as
safe, and they do not cause older backups to be removed.
"""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from infrastructure.backup.backends.base import Content, Evidence, require_content
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.backends.mounts import MOUNTS, mount_of
from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase

ID_ATTRIBUTE = "user.drive.id"
NOT_UPLOADED = "local"
OWN_DRIVE = ("MyDrive", "My Drive")
OTHER_DRIVES = ("Shareddrives", "Shared drives", ".shortcut-targets-by-id")

ADVICE = {
    errno.ENOSPC: "backup.advice_drive_and_disk_full",
    errno.EDQUOT: "backup.advice_drive_full",
    errno.ENOTCONN: "backup.advice_remount_drive",
    errno.ENOENT: "backup.advice_remount_drive",
    errno.EIO: "backup.advice_drive_limit",
    errno.EACCES: "backup.advice_drive_permission",
    errno.EPERM: "backup.advice_drive_permission",
    errno.EROFS: "backup.advice_drive_read_only",
}


def read_drive_id(path: Path) -> str | None:
    """Return the id that DriveFS has for a file, or None without an id or without DriveFS.

    Raises:
        OSError: if the mount does not respond.
    """
    if not hasattr(os, "getxattr"):  # macOS
        return None
    try:
        return os.getxattr(path, ID_ATTRIBUTE).decode(errors="replace")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM):
            return None
        raise


class DriveFiles(FileOperations):
    """File operations through the page cache; a mounted Drive may not support direct I/O."""

    is_direct = False


class DrivePlace(FolderPlace):
    """The directory `root` on a mounted Drive.

    Files are written directly under their final names, because the mount may undo a rename. No name
    is used twice. A damaged file is removed before it is written again, so that its replacement
    gets a new id. If a directory disappears during the session, the connection counts as lost.

    Args:
        drive_id: a function that reads the id of a file.
    """

    is_slow = True

    def __init__(
        self,
        root: Path,
        operations: FileOperations | None = None,
        drive_id: Callable[[Path], str | None] = read_drive_id,
    ) -> None:
        super().__init__(root, operations or DriveFiles())
        self.hashes = ("sha256",)
        self.anchor = drive_folder(root) or root.parent
        self._drive_id = drive_id
        self._seen: set[Path] = set()
        self._read_back: set[tuple[Path, Content]] = set()

    def confirm(self, path: Path, content: Content) -> bool | Evidence:
        self.require_identity()
        try:
            size_bytes = self.size(path)
            drive_id = self._drive_id(self.at(path))
        except FileNotFoundError:
            return False  # not proof that it is gone: a failing mount says this of every file
        if size_bytes != content.size_bytes:
            raise StorageError(
                "backup.mounted_file_size_mismatch",
                path=self.at(path),
                size=size_bytes,
                expected_size=content.size_bytes,
            )
        if drive_id is None or drive_id.startswith(NOT_UPLOADED):
            return False
        if (path, content) not in self._read_back:
            require_content(self, path, content)
            self._read_back.add((path, content))
        self.require_identity()  # otherwise it may have been read below a lost mount
        return Evidence.MOUNT

    def sweep(self, directory: Path) -> None:
        """Do nothing, because no partial files or probe files are written to a Drive."""

    def probe(self) -> None:
        """Check permissions without writing a file, which would stay in Drive's trash."""
        if not os.access(self.root, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(self.root))

    def advice(self, error: OSError) -> str:
        code = ADVICE.get(error.errno or 0, "backup.advice_check_write_access")
        return phrase(code, url=self.url, mount=self.anchor.parent)

    def caution(self, run_directory: Path) -> str | None:
        try:
            has_ids = self._drive_id(self.anchor) is not None
        except OSError:
            return None  # not mounted: the copier will report it
        if has_ids:
            return None
        return phrase("backup.drive_reports_no_uploads", folder=self.anchor)

    def names(self, directory: Path) -> list[str]:
        try:
            names = super().names(directory)
        except FileNotFoundError:
            self._require_not_seen(directory)
            raise
        self._seen.add(directory)
        return names

    def make_directory(self, directory: Path) -> None:
        self.require_identity()
        if directory not in self._seen:
            super().make_directory(directory)
            self._seen |= {directory, *directory.parents}
        elif not self._is_there(self.at(directory)):
            self._require_not_seen(directory)

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.make_directory(path.parent)
        target = self.at(path)
        if self._is_there(target):
            self.remove(path)
        self._read_back = {(other, content) for other, content in self._read_back if other != path}
        try:
            self.operations.write(target, buffers)
            self.operations.sync_file(target)
        except FileExistsError:
            raise  # the mount reported it as missing; it may be intact
        except BaseException:
            self._remove_if_there(target)
            raise

    def create(self, path: Path, data: bytes) -> None:
        """Return None: on Drive, two machines could create a file of the same name."""

    def remove(self, path: Path) -> None:
        """Empty a file before removing it, because Drive's trash keeps removed files for 30
        days.
        """
        self.truncate(path)
        super().remove(path)

    def sync_directory(self, directory: Path) -> None:
        """Do nothing: the mount does not support syncing a directory."""

    def _make(self, directory: Path) -> None:
        self.operations.make_directory(directory)

    def _require_not_seen(self, directory: Path) -> None:
        if directory in self._seen:
            text = phrase("backup.drive_connection_lost", path=self.at(directory))
            raise OSError(errno.ENOTCONN, text)


def drive_folder(path: Path) -> Path | None:
    """Return the top folder of the Drive that contains `path`, or None if it is not on a Drive."""
    for number, part in enumerate(path.parts):
        if part in OWN_DRIVE:
            return Path(*path.parts[: number + 1])
        if part in OTHER_DRIVES and number + 1 < len(path.parts):
            return Path(*path.parts[: number + 2])
    return None


def is_on_drive(path: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether `path` is in a folder where a Drive is mounted or usually would be."""
    folder = drive_folder(path)
    if folder is None:
        return False
    try:
        has_id = read_drive_id(folder) is not None
    except OSError:  # not mounted (any more)
        return True
    mount = mount_of(folder, mounts)
    if has_id or mount is None:
        return True
    return mount.is_fuse and "drive" in (mount.device, mount.kind.removeprefix("fuse."))
