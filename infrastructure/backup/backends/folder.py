"""A folder on another disk: USB, NFS, a second volume. Files are synced and then read back."""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from infrastructure.backup.backends.base import Content, Evidence, Place, require_content
from infrastructure.backup.backends.mounts import MOUNTS, Mount, mount_of
from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.backup.format.hashing import available_hash
from infrastructure.core.files import paths_below, remove_if_unlocked
from infrastructure.core.lock import is_held
from infrastructure.core.messages import phrase

Result = TypeVar("Result")

PART = ".part"
OLD_PART_SECONDS = 86400.0
# errors of file systems without hard links, such as exFAT
NO_LINKS = (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)

ADVICE = {
    errno.ENOSPC: "backup.advice_full",
    errno.EDQUOT: "backup.advice_quota",
    errno.EACCES: "backup.advice_folder_permission",
    errno.EPERM: "backup.advice_folder_permission",
    errno.EROFS: "backup.advice_folder_read_only",
    errno.ENOTCONN: "backup.advice_mount_disk",
    errno.ESTALE: "backup.advice_remount_disk",
    errno.ENOENT: "backup.advice_folder_missing",
    errno.ENOTDIR: "backup.advice_not_a_folder",
    errno.EFBIG: "backup.advice_file_too_large",
    errno.EIO: "backup.advice_disk_errors",
}


class FolderPlace(Place):
    """The directory `root`, which is created if its parent exists.

    The parent is never created: if a disk is not mounted, the folder would be created on this
    machine's own disk. If the root existed before and is now missing, the connection counts as
    lost.

    Args:
        root: the absolute path of the folder.
        operations: the underlying file system.
        mounts: the system's list of mounts.
    """

    is_slow = False

    def __init__(
        self, root: Path, operations: FileOperations | None = None, mounts: Path = MOUNTS
    ) -> None:
        self.root = root
        self.mounts = mounts
        self.url = str(root)
        self.anchor = root.parent  # must exist
        self.operations = operations or FileOperations()
        self.hashes: Sequence[str] = (available_hash(),)
        self._was_there = False

    def require_reachable(self) -> None:
        self._require_connection()
        folder = self.root if self._is_there(self.root) else self.anchor
        if not folder.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            code = errno.EROFS if is_read_only else errno.EACCES
            raise OSError(code, os.strerror(code))

    def confirm(self, path: Path, content: Content) -> bool | Evidence:
        self.require_identity()
        require_content(self, path, content)
        self.require_identity()  # otherwise it may have been read below a lost mount
        mount = self._program
        return Evidence.READ_BACK if mount is None else Evidence.MOUNT

    def advice(self, error: OSError) -> str:
        code = ADVICE.get(error.errno or 0, "backup.advice_check_write_access")
        return phrase(code, url=self.url)

    @property
    def _program(self) -> Mount | None:
        """The FUSE mount that contains the folder, or None if it is not on FUSE."""
        mount = mount_of(self.root, self.mounts)
        return mount if mount is not None and mount.is_fuse else None

    def caution(self, run_directory: Path) -> str | None:
        if (mount := self._program) is not None:
            return phrase("backup.fuse_mount_may_cache", url=self.url, kind=mount.kind)
        with contextlib.suppress(OSError):  # not mounted: the copier will report it
            if self.anchor.stat().st_dev == run_directory.stat().st_dev:
                return phrase("backup.destination_on_same_disk", url=self.url)
        return None

    def read(self, path: Path) -> Iterator[bytes]:
        yield from self._pieces(lambda: self.operations.read(self.at(path)))

    def read_back(self, path: Path) -> Iterator[Buffer]:
        yield from self._pieces(lambda: self.operations.read_back(self.at(path)))

    def size(self, path: Path) -> int:
        return self._try(lambda: self.operations.size(self.at(path)))

    def names(self, directory: Path) -> list[str]:
        return self._try(lambda: self.operations.names(self.at(directory)))

    def free_bytes(self, directory: Path) -> int | None:
        return self.operations.free_bytes(self.root if self._is_there(self.root) else self.anchor)

    def make_directory(self, directory: Path) -> None:
        self._require_connection()
        self.require_identity()
        self._make(self.at(directory))
        self._was_there = True

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.make_directory(path.parent)
        target = self.at(path)
        for is_last in (False, False, True):
            try:
                self._write_part_and_rename(target, buffers)
                break
            except FileNotFoundError:  # another process swept it before it was locked
                if is_last:
                    raise
        self.operations.sync_directory(target.parent)

    def _write_part_and_rename(self, target: Path, buffers: Sequence[Buffer]) -> None:
        part = target.with_name(f"{target.name}{PART}")
        self._remove_if_there(part)  # left by a killed copier
        try:
            self.operations.write(part, buffers)
            self.operations.sync_file(part)
            self.operations.rename(part, target)
        except BaseException:
            self._remove_if_there(part)
            raise

    def create(self, path: Path, data: bytes) -> bool | None:
        if self._program is not None:  # two machines' mounts may both create a file of one name
            return None
        self.make_directory(path.parent)
        target = self.at(path)
        part = target.with_name(f"{target.name}.{secrets.token_hex(4)}{PART}")
        try:
            self.operations.write(part, [data])
            self.operations.sync_file(part)
            return self._link(part, target)
        finally:
            self._remove_if_there(part)

    def _link(self, part: Path, target: Path) -> bool | None:
        try:
            self.operations.link(part, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in NO_LINKS:
                return None
            raise
        self.operations.sync_directory(target.parent)
        return True

    def sweep(self, directory: Path) -> None:
        """Remove probe files and partial files, except those that a running writer has locked.

        The partial file of a running writer may be removed by mistake if the lock of another
        machine is not visible, or if the file system has no locks and the file is more than a day
        old. This is harmless: the writer then writes the file again.
        """
        super().sweep(directory)
        for path in paths_below(self.at(directory)):
            if path.suffix != PART:
                continue
            with contextlib.suppress(FileNotFoundError):
                is_old = time.time() - path.stat().st_mtime > OLD_PART_SECONDS
                stays = path.is_file() and not remove_if_unlocked(path)
                if stays and is_old and is_held(path) is None:
                    path.unlink()

    def remove(self, path: Path) -> None:
        self.require_identity()
        self._try(lambda: self.operations.remove(self.at(path)))

    def truncate(self, path: Path) -> None:
        self.require_identity()
        self._try(lambda: self.operations.truncate(self.at(path)))

    def rename(self, source: Path, target: Path) -> None:
        self._try(lambda: self.operations.rename(self.at(source), self.at(target)))

    def sync_directory(self, directory: Path) -> None:
        self._try(lambda: self.operations.sync_directory(self.at(directory)))

    def at(self, path: Path) -> Path:
        """Return the absolute path of `path`, a path relative to the folder.

        Raises:
            ValueError: if the path leads out of the destination.
        """
        return self.root.joinpath(*self.parts_of(path))

    def _try(self, operation: Callable[[], Result]) -> Result:
        """Run `operation`. If a file is missing because its disk is not mounted, raise ENOTCONN."""
        try:
            result = operation()
        except FileNotFoundError:
            self._require_connection()
            raise
        self._was_there = True
        return result

    def _pieces(self, begin: Callable[[], Iterator[Result]]) -> Iterator[Result]:
        pieces = self._try(begin)
        while (piece := self._try(lambda: next(pieces, None))) is not None:
            yield piece

    def _make(self, directory: Path) -> None:
        missing = [
            folder
            for folder in (directory, *directory.parents)
            if self.anchor in folder.parents and not self._is_there(folder)
        ]
        if missing:
            self.operations.make_directory(directory)
        for folder in missing:
            self.operations.sync_directory(folder.parent)

    def _require_connection(self) -> None:
        """Raise OSError (ENOTCONN) if the disk is not mounted."""
        needed = self.root if self._was_there else self.anchor
        if not self._is_there(needed):
            raise OSError(errno.ENOTCONN, phrase("backup.path_missing", path=needed)) from None

    def _is_there(self, directory: Path) -> bool:
        try:
            self.operations.size(directory)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _remove_if_there(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # the original error matters more
            self.operations.remove(path)
