"""Objects: files named by the hash of their bytes, written once, never changed."""

import contextlib
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path

from infrastructure.backup.file_operations import Buffer, FileOperations
from infrastructure.backup.hashing import hash_of
from infrastructure.backup.manifest import MAX_MANIFEST_BYTES, Pack
from infrastructure.backup.packs import size_of
from infrastructure.core.errors import CheckpointError, StorageError

SLACK_BYTES = 64 * 1024**2  # the disk is never filled to its last byte


class ObjectFiles:
    """The files of a store, and how each comes to be there whole or not at all.

    Args:
        root: the store's directory.
        operations: the file system.
    """

    def __init__(self, root: Path, operations: FileOperations) -> None:
        self.root = root
        self.operations = operations
        self._trusted: set[str] = set()  # read and found right since this was opened

    def path_of(self, digest: str) -> Path:
        """The file of the object `digest`."""
        return self.root / "objects" / digest[:2] / digest

    def read_small(self, path: Path) -> bytes:
        """A file no larger than a manifest may be.

        Raises:
            CheckpointError: it is missing, unreadable or too large.
        """
        try:
            found = self.operations.size(path)
            if found > MAX_MANIFEST_BYTES:
                raise CheckpointError(f"{path.name[:26]} has {found} bytes, more than any real one")
            return b"".join(self.operations.read(path))
        except FileNotFoundError as error:
            raise CheckpointError(f"{path.name[:26]} is missing") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def verify(self, pack: Pack, hash_name: str) -> None:
        """Compare an object's bytes with its name.

        Raises:
            CheckpointError: it is missing, cut, changed, or cannot be read.
        """
        path = self.path_of(pack.hash)
        self._trusted.discard(pack.hash)
        try:
            found = self.operations.size(path)
            if found != pack.size_bytes:
                raise CheckpointError(
                    f"object {pack.hash[:12]} has {found} bytes instead of {pack.size_bytes}"
                )
            digest = hash_of(hash_name, self.operations.read(path))
        except FileNotFoundError as error:
            raise CheckpointError(f"object {pack.hash[:12]} is missing") from error
        except OSError as error:
            raise CheckpointError(f"object {pack.hash[:12]} cannot be read: {error}") from error
        if digest != pack.hash:
            raise CheckpointError(f"the bytes of object {pack.hash[:12]} have changed")
        self._trusted.add(pack.hash)

    def read(self, pack: Pack, hash_name: str) -> bytearray:
        """The bytes of an object, verified as they are returned.

        Raises:
            CheckpointError: as `verify`.
        """
        path = self.path_of(pack.hash)
        try:
            if self.operations.size(path) == pack.size_bytes:
                data = bytearray(pack.size_bytes)
                end = 0
                for chunk in self.operations.read(path):
                    data[end : end + len(chunk)] = chunk
                    end += len(chunk)
                if hash_of(hash_name, [data]) == pack.hash:
                    return data
        except OSError:
            self.verify(pack, hash_name)
        self.verify(pack, hash_name)
        raise CheckpointError(f"object {pack.hash[:12]} reads differently each time")

    def is_whole(self, pack: Pack, hash_name: str) -> bool:
        """Whether an object may be named again without being written again."""
        try:
            if pack.hash not in self._trusted:
                self.verify(pack, hash_name)
            return self.operations.size(self.path_of(pack.hash)) == pack.size_bytes
        except (CheckpointError, OSError):
            return False

    def require_space(self, needed_bytes: int) -> None:
        """Refuse to begin what cannot be finished.

        Raises:
            StorageError: there is too little room on the disk.
        """
        free_bytes = self.operations.free_bytes(self.root)
        if free_bytes is not None and free_bytes < needed_bytes + SLACK_BYTES:
            raise StorageError(
                f"{self.root} has {free_bytes / 1e6:.0f} MB free; a version needs"
                f" {needed_bytes / 1e6:.0f} MB, and {SLACK_BYTES / 1e6:.0f} MB stay free: make room"
            )

    def write_pack(self, buffers: Sequence[Buffer], hash_name: str) -> Pack:
        """Write an object, unless it is there already and whole.

        Raises:
            OSError, StorageError: the disk refuses, or does not keep what it was given.
        """
        pack = Pack(hash_of(hash_name, buffers), size_of(buffers))
        if not self.is_whole(pack, hash_name):
            directory = self.path_of(pack.hash).parent
            self.operations.make_directory(directory)
            self.operations.sync_directory(directory.parent)
            self.put(self.path_of(pack.hash), buffers, pack.hash, hash_name)
            self._trusted.add(pack.hash)
        return pack

    def put(self, path: Path, buffers: Sequence[Buffer], digest: str, hash_name: str) -> None:
        """Bytes first, name second, both on the disk, and read back, before this returns.

        Raises:
            OSError, StorageError: as `write_pack`.
        """
        part = self.root / "tmp" / secrets.token_hex(16)
        try:
            self.operations.write(part, buffers)
            self.operations.sync_file(part)
            self.operations.rename(part, path)
        except BaseException:
            self._remove_if_there(part)
            raise
        self.operations.sync_directory(path.parent)
        if self._differs(path, digest, hash_name):
            self._remove_if_there(path)
            raise StorageError(f"{path} does not hold what was just written to it")

    def _differs(self, path: Path, digest: str, hash_name: str) -> bool:
        self.operations.forget_cached(path)
        return hash_of(hash_name, self.operations.read(path)) != digest

    def remove_all_but(self, living: Collection[str]) -> None:
        """Remove the objects that nothing names.

        Raises:
            OSError: the disk refuses.
        """
        for folder in self.operations.names(self.root / "objects"):
            for digest in self.operations.names(self.root / "objects" / folder):
                if digest not in living:
                    self._trusted.discard(digest)
                    self.operations.remove(self.root / "objects" / folder / digest)

    def sweep(self) -> None:
        """Remove what a killed writer left half-written.

        Raises:
            OSError: the disk refuses.
        """
        with contextlib.suppress(FileNotFoundError):
            for name in self.operations.names(self.root / "tmp"):
                self.operations.remove(self.root / "tmp" / name)

    def _remove_if_there(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # swept later; the error being raised matters more
            self.operations.remove(path)
