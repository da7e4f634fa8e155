"""The interface of a backup destination: file-system operations, and `confirm`.

Paths are relative to the destination (`Path("run-1/objects/ab/…")`), so
`Store(Path("run-1"), place)` reads a destination as it reads a disk.
"""

import abc
import contextlib
import enum
import errno
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from infrastructure.backup.backends.place_identity import FOLDER, has_id, ids_at, mark
from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.backup.format.hashing import Digest, new_digest
from infrastructure.core.errors import InputError, StorageError
from infrastructure.core.messages import phrase

PROBE = "probe-"
SERVER_HASHES = ("sha256", "md5")  # most servers compute one of them


@dataclass(frozen=True)
class Content:
    """The content of a written file: its size, and the hashes that its destination compares.

    Attributes:
        size_bytes: the number of bytes as stored (after compression, if the object is compressed).
        hashes: names and hex hashes of the same bytes. The first hash is used to check the file
            when it is read back. MD5 does not protect against tampering, so it is only compared
            with a server's checksum of a file that Temper wrote.
    """

    size_bytes: int
    hashes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, buffers: Iterable[Buffer], names: Iterable[str] = SERVER_HASHES) -> Self:
        """Return the content of the concatenated `buffers`.

        Args:
            names: the names of the hashes, as in `Place.hashes`.
        """
        size_bytes, digests = 0, {name: _digest(name) for name in names}
        for buffer in buffers:
            size_bytes += memoryview(buffer).nbytes
            for digest in digests.values():
                digest.update(buffer)
        return cls(size_bytes, tuple((name, d.hexdigest()) for name, d in digests.items()))

    @property
    def sha256(self) -> str:
        return self._hash("sha256")

    @property
    def md5(self) -> str:
        return self._hash("md5")

    def _hash(self, name: str) -> str:
        """Return the hash called `name`. Raise ValueError if the destination does not use this
        hash.
        """
        for known, value in self.hashes:
            if known == name:
                return value
        raise InputError("backup.hash_not_declared", hash_name=name)


class Evidence(enum.StrEnum):
    """The ways to check that a file at a destination is correct, the strongest first."""

    CHECKSUM = "service checksum"  # computed by the service
    READ_BACK = "read-back"
    MOUNT = "mount cache"  # read through a mount, which may serve its local cache
    BACKEND = "storage backend"  # confirmed, but the backend does not report how


def _digest(name: str) -> Digest:
    return hashlib.md5(usedforsecurity=False) if name == "md5" else new_digest(name)


class Place(FileOperations, abc.ABC):
    """A backup destination. Unless documented otherwise, its methods raise only OSError.

    FileNotFoundError means that the file does not exist. If the destination is unreachable, another
    OSError is raised (with `errno.ENOTCONN` if nothing more precise is known).

    Attributes:
        url: the destination as users write it, without secrets.
        is_slow: whether transferring bytes takes longer than compressing them.
        hashes: the hashes of a file that `confirm` compares. Each one costs a pass over all bytes.
        identity: the id that `identify` found, or None before it is called.
        run: the run that is copied there; messages name it in the commands that they suggest.
        is_new: True if `identify` created the marker file, so that nothing was copied to this
            destination before.
    """

    url: str
    is_slow: bool
    is_direct = False  # `read_back` uses `read`
    hashes: Sequence[str] = SERVER_HASHES
    identity: str | None = None
    run = "RUN"
    is_new = False

    def identify(self, known: str | None = None) -> str:
        """Return the id of this destination from its marker file, which is created at first
        contact.

        Afterwards, every write and every confirmation checks the marker file again.

        Args:
            known: the id that the destination must have; None accepts any id.

        Returns:
            The id of the destination.

        Raises:
            OSError: if the destination does not respond or fails; with ENOTCONN if it is another
                destination.
        """
        if known is not None:
            self.identity = known
            self.require_identity()
            return known
        self.identity = None
        ids = ids_at(self)
        self.is_new = not ids
        self.identity = ids[0] if ids else mark(self)
        self.require_identity()
        return self.identity

    def require_identity(self) -> None:
        """Check the marker file with the destination's id, if `identify` was called.

        Raises:
            OSError: if the destination does not respond; with ENOTCONN if this is now another
                destination, such as the empty folder below a mount that disappeared.
        """
        if self.identity is not None and not has_id(self, self.identity):
            what = "backup.another_destination" if ids_at(self) else "backup.folder_without_marker"
            raise OSError(
                errno.ENOTCONN,
                phrase(
                    "backup.not_the_runs_destination", run=self.run, url=self.url, what=phrase(what)
                ),
            )

    def require_reachable(self) -> None:
        """Raise an error if a destination is visibly unusable, without connecting or writing.

        Raises:
            OSError: if the destination cannot be used as it is.
        """
        return

    def probe(self) -> None:
        """Write a small file and remove it, to check for write access.

        Raises:
            OSError: if the destination does not respond or fails.
        """
        path = FOLDER / f"{PROBE}{secrets.token_hex(4)}"
        self.write(path, [b"may be removed"])
        with contextlib.suppress(FileNotFoundError):  # another process has swept it
            self.remove(path)

    def sweep(self, directory: Path) -> None:
        """Remove partial files in `directory` and probe files that killed processes left behind.

        Raises:
            OSError: if the destination does not respond or fails.
        """
        with contextlib.suppress(FileNotFoundError):
            for name in self.names(FOLDER):
                if name.startswith(PROBE):
                    self.remove(FOLDER / name)

    @abc.abstractmethod
    def confirm(self, path: Path, content: Content) -> bool | Evidence:
        """Return whether a file at the destination is correct, and safe even if this machine is
        lost.

        Returns:
            False if the file is not safe yet; ask again later. Otherwise, an `Evidence` of how its
            bytes were compared; True means `Evidence.BACKEND`.

        Raises:
            StorageError: if the content differs or the file is missing; the caller must write it
                again.
            OSError: if the destination cannot be reached.
        """

    def advice(self, error: OSError) -> str:
        """Return one sentence on what the user can do about `error`.

        Afterwards the copier, which copies checkpoints to the destination, continues by itself.
        """
        return phrase("backup.check_destination_reachable", url=self.url)

    def caution(self, run_directory: Path) -> str | None:
        """Return a warning about a data loss that this destination does not prevent, or None.

        For example, a destination on the same disk as `run_directory` is lost together with the
        run.
        """
        return None

    def parts_of(self, path: Path) -> tuple[str, ...]:
        """Return the path components from the destination to `path`.

        Raises:
            ValueError: if the path leads out of the destination.
        """
        if path.is_absolute() or ".." in path.parts:
            raise InputError("backup.path_outside_destination", path=path, url=self.url)
        return path.parts

    @abc.abstractmethod
    def read(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes of a file, a few megabytes at a time."""

    def read_into(self, path: Path, memory: memoryview) -> Iterator[int]:
        """Read a file into `memory` and yield the number of bytes read so far.

        This default copies the bytes once more in memory, which takes little time compared with the
        transfer.
        """
        end = 0
        for chunk in self.read(path):
            fits = chunk[: len(memory) - end]
            memory[end : end + len(fits)] = fits
            end += len(fits)
            yield end

    @abc.abstractmethod
    def size(self, path: Path) -> int:
        """Return the size of a file in bytes."""

    @abc.abstractmethod
    def names(self, directory: Path) -> list[str]:
        """Return the current entries of `directory`.

        Raise FileNotFoundError if nothing was ever written to the directory.
        """

    @abc.abstractmethod
    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        """Write a whole file.

        An existing file of the same name, such as a damaged copy, is replaced.

        If the destination has directories, the parent directory is created.
        """

    def create(self, path: Path, data: bytes) -> bool | None:
        """Create a small file, unless a file of its name exists.

        If several machines try at the same instant, exactly one succeeds. The file is complete and
        durable when this returns.

        Returns:
            True if the file was created, False if a file of this name exists, None if the backend
            does not support conditional writes. With False or None, nothing was written.
        """
        return None

    @abc.abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a file, and free its space if the destination allows this."""

    def free_bytes(self, directory: Path) -> int | None:
        return None

    def make_directory(self, directory: Path) -> None:
        """Do nothing: `write` creates missing directories."""

    def sync_file(self, path: Path) -> None:
        """Do nothing: when `write` returns, the destination already has the bytes."""

    def sync_directory(self, directory: Path) -> None:
        """Do nothing: when `write` returns, the destination already lists the file."""

    def rename(self, source: Path, target: Path) -> None:
        """Copy the file and remove the source, because few destinations support renaming."""
        self.write(target, list(self.read(source)))
        self.remove(source)

    def truncate(self, path: Path) -> None:
        """Make a file empty."""
        self.write(path, [])

    def forget_cached(self, path: Path) -> None:
        """Do nothing: reads come from the destination."""

    def close(self) -> None:
        """Finish pending work, such as batched removals. The destination can still be used."""


def require_content(place: Place, path: Path, content: Content) -> None:
    """Read a file again and compare it with what was written.

    Raises:
        StorageError: if the content differs or the file is missing.
        OSError: if the file cannot be read.
    """
    shown = f"{place.url}/{path}"
    try:
        size_bytes = place.size(path)
        if size_bytes != content.size_bytes:
            raise StorageError(
                "backup.read_back_size_mismatch",
                path=shown,
                size=size_bytes,
                expected_size=content.size_bytes,
            )
        name, expected = content.hashes[0]
        digest = _digest(name)
        for chunk in place.read_back(path):
            digest.update(chunk)
    except FileNotFoundError as error:
        raise StorageError("backup.read_back_file_missing", path=shown) from error
    if digest.hexdigest() != expected:
        raise StorageError("backup.read_back_mismatch", path=shown)
