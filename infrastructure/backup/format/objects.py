"""Objects: files that are named by the hash of their bytes, written once and never changed.

A file `<hash>` contains the bytes themselves, and a file `<hash>.zst` contains them compressed.
"""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path

from infrastructure.backup.format.codec import LARGEST_BYTES, SUFFIX, compress, decompress
from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.backup.format.hashing import HEX_HASH, hash_of
from infrastructure.backup.format.manifest import MAX_MANIFEST_BYTES, Pack
from infrastructure.backup.format.packs import size_of
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.messages import phrase

# The pieces to hash, and the memory that holds all of them afterwards (or nothing).
Contents = tuple[Iterable[Buffer], Buffer]

OBJECT_FOLDER = re.compile(r"[0-9a-f]{2}")
SLACK_BYTES = 64 * 1024**2  # stays free on the disk


class ObjectFiles:
    """The files of a store. Each is written atomically.

    Args:
        root: the directory of the store.
        operations: the file system.
        compresses: whether to write an object compressed if that is smaller. Compressed and
            uncompressed objects can always be read.
    """

    def __init__(self, root: Path, operations: FileOperations, compresses: bool = False) -> None:
        self.root = root
        self.operations = operations
        self.compresses = compresses
        # files that were verified since this was opened, and their sizes
        self._trusted: dict[str, tuple[Path, int]] = {}

    def path_of(self, digest: str) -> Path:
        """Return the path of the object `digest` in uncompressed form."""
        return self.root / "objects" / digest[:2] / digest

    def compressed_path_of(self, digest: str) -> Path:
        """Return the path of the object `digest` in compressed form."""
        return self.path_of(digest + SUFFIX)

    def read_small(self, path: Path) -> bytes:
        """Read a file that must not be larger than a manifest may be.

        Raises:
            CheckpointError: if it is missing, unreadable or too large.
        """
        try:
            size_bytes = self.operations.size(path)
            if size_bytes > MAX_MANIFEST_BYTES:
                raise CheckpointError(
                    "backup.store_file_too_large", path=path.name[:26], size=size_bytes
                )
            return b"".join(self.operations.read(path))
        except FileNotFoundError as error:
            raise CheckpointError("backup.store_file_missing", path=path.name[:26]) from error
        except OSError as error:
            raise CheckpointError("backup.file_unreadable", path=path, error=error) from error

    def verify(self, pack: Pack, hash_name: str) -> None:
        """Compare the bytes of an object with its hash.

        Raises:
            CheckpointError: if it is missing, truncated, changed or unreadable.
        """
        self._whole(pack, hash_name, self._chunks, self._unpacked)

    def read(self, pack: Pack, hash_name: str) -> Buffer:
        """Return the verified bytes of an object in newly allocated memory.

        The hash is computed from that memory, so the file is read only once.

        Raises:
            CheckpointError: as in `verify`.
        """
        return self._whole(pack, hash_name, self._loaded, self._unpacked)

    def require_there(self, pack: Pack) -> None:
        """Check that an object exists and has the right size, without reading its bytes.

        Raises:
            CheckpointError: if it is missing or truncated.
        """
        for path in (self.path_of(pack.hash), self.compressed_path_of(pack.hash)):
            try:
                size_bytes = self.operations.size(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CheckpointError(
                    "backup.object_unreadable", hash=pack.hash[:12], error=error
                ) from error
            if size_bytes == pack.size_bytes or (
                path.suffix == SUFFIX and 0 < size_bytes < pack.size_bytes
            ):
                return
        raise CheckpointError("backup.object_missing_or_truncated", hash=pack.hash[:12])

    def is_whole(self, pack: Pack, hash_name: str) -> bool:
        """Return whether an object exists and is intact, so that it need not be written again."""
        try:
            if pack.hash not in self._trusted:
                self.verify(pack, hash_name)
            path, size_bytes = self._trusted[pack.hash]
            return self.operations.size(path) == size_bytes
        except (CheckpointError, OSError):
            return False

    def require_space(self, needed_bytes: int) -> None:
        """Raise an error if there is not enough free space for a write.

        Raises:
            StorageError: if the disk has too little free space.
        """
        free_bytes = self.operations.free_bytes(self.root)
        if free_bytes is not None and free_bytes < needed_bytes + SLACK_BYTES:
            raise StorageError(
                "backup.no_space_for_checkpoint",
                root=self.root,
                free_mib=free_bytes / 2**20,
                needed_mib=needed_bytes / 2**20,
                reserve_mib=SLACK_BYTES / 2**20,
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_pack(self, buffers: Sequence[Buffer], hash_name: str) -> Pack:
        """Write an object, unless an intact one exists.

        Raises:
            OSError, StorageError: if the disk fails, or does not return what was written.
        """
        pack = Pack(hash_of(hash_name, buffers), size_of(buffers))
        if not self.is_whole(pack, hash_name):
            path, digest = self.path_of(pack.hash), pack.hash
            packed = self._packed(buffers, pack, hash_name)
            if packed is not None:
                path, digest = self.compressed_path_of(pack.hash), hash_of(hash_name, [packed])
                buffers = [packed]
            self.operations.make_directory(path.parent)
            self.operations.sync_directory(path.parent.parent)
            self.put(path, buffers, digest, hash_name)
            self._trusted[pack.hash] = path, size_of(buffers)
        return pack

    def put(self, path: Path, buffers: Sequence[Buffer], digest: str, hash_name: str) -> None:
        """Write a file under a temporary name, sync it, rename it, and read it back.

        The bytes and the name are on the disk when this returns.

        Raises:
            OSError, StorageError: as in `write_pack`.
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
            raise StorageError("backup.write_not_kept", path=path)

    def _differs(self, path: Path, digest: str, hash_name: str) -> bool:
        return hash_of(hash_name, self.operations.read_back(path)) != digest

    def remove_all_but(self, living: Collection[str]) -> None:
        """Remove the objects that are not in `living`. Other files are not touched.

        Raises:
            OSError: if the disk fails.
        """
        folders = self.operations.names(self.root / "objects")
        for folder in filter(OBJECT_FOLDER.fullmatch, folders):
            for name in self.operations.names(self.root / "objects" / folder):
                digest = name.removesuffix(SUFFIX)
                if digest not in living and HEX_HASH.fullmatch(digest):
                    self._trusted.pop(digest, None)
                    self.operations.remove(self.root / "objects" / folder / name)

    def sweep(self) -> None:
        """Remove the partial files that a killed writer left behind.

        Raises:
            OSError: if the disk fails.
        """
        with contextlib.suppress(FileNotFoundError):
            for name in self.operations.names(self.root / "tmp"):
                self.operations.remove(self.root / "tmp" / name)

    def _whole(
        self,
        pack: Pack,
        hash_name: str,
        plain: Callable[[Path, Pack], Contents],
        compressed: Callable[[Path, Pack], Contents],
    ) -> Buffer:
        """Return the bytes of an object from its uncompressed or compressed file, whichever is
        intact.

        `plain` and `compressed` are functions that read these files; `plain` is tried first.
        """
        self._trusted.pop(pack.hash, None)
        problem = missing = phrase("backup.object_is_missing")
        cause: Exception | None = None
        forms = {self.path_of(pack.hash): plain, self.compressed_path_of(pack.hash): compressed}
        for path, read in forms.items():
            try:
                pieces, whole = read(path, pack)
                if hash_of(hash_name, pieces) == pack.hash:
                    self._trusted[pack.hash] = path, self.operations.size(path)
                    return whole
                problem, cause = phrase("backup.object_bytes_changed"), None
            except FileNotFoundError as error:
                if problem == missing:  # in both forms: the caller may retry on a mount
                    cause = error
            except OSError as error:
                problem, cause = phrase("backup.object_cannot_be_read", error=error), error
            except CheckpointError as error:
                problem, cause = str(error), error
        raise CheckpointError(
            "backup.object_problem", hash=pack.hash[:12], problem=problem
        ) from cause

    def _chunks(self, path: Path, pack: Pack) -> Contents:
        self._require_size(path, pack)
        return self.operations.read(path), b""

    def _loaded(self, path: Path, pack: Pack) -> Contents:
        import numpy as np  # as in `codec`: writers and copiers do not load it

        self._require_size(path, pack)
        # NumPy requests large pages, which the system provides several times as fast
        data = np.empty(pack.size_bytes, np.uint8).data
        ends = self.operations.read_into(path, data)
        return (data[begin:end] for begin, end in pairwise(chain([0], ends))), data

    def _unpacked(self, path: Path, pack: Pack) -> Contents:
        size_bytes = self.operations.size(path)
        if size_bytes >= pack.size_bytes:
            raise CheckpointError(
                "backup.compressed_not_smaller", size=size_bytes, plain_size=pack.size_bytes
            )
        data = decompress(self._read_all(path, size_bytes), pack.size_bytes)
        return [data], data

    def _read_all(self, path: Path, size_bytes: int) -> bytearray:
        data, end = bytearray(size_bytes), 0
        for chunk in self.operations.read(path):
            data[end : end + len(chunk)] = chunk
            end += len(chunk)
        return data

    def _require_size(self, path: Path, pack: Pack) -> None:
        size_bytes = self.operations.size(path)
        if size_bytes != pack.size_bytes:
            raise CheckpointError(
                "backup.object_size_mismatch", size=size_bytes, expected_size=pack.size_bytes
            )

    def _packed(self, buffers: Sequence[Buffer], pack: Pack, hash_name: str) -> bytes | None:
        """Return an object in compressed form; None if compression is off or does not make it
        smaller.
        """
        if not self.compresses or pack.size_bytes > LARGEST_BYTES:
            return None
        packed = compress(b"".join(buffers))
        if len(packed) >= pack.size_bytes:
            return None
        if hash_of(hash_name, [decompress(packed, pack.size_bytes)]) != pack.hash:
            raise StorageError("backup.compression_corrupted_object", hash=pack.hash[:12])
        return packed

    def _remove_if_there(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # swept later; the original error matters more
            self.operations.remove(path)
