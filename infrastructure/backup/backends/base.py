"""What every place has in common: the operations of a file system, and `confirm`.

Paths are relative to the place (`Path("run-1/objects/ab/…")`), so `Store(Path("run-1"), place)`
reads a place as it reads a disk.
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
SERVER_HASHES = ("sha256", "md5")  # one of which most servers compute themselves


@dataclass(frozen=True)
class Content:
    """What was written to one file: its size, and the hashes that its place compares.

    Attributes:
        size_bytes: of the bytes as they are stored (of a compressed object: the compressed ones).
        hashes: names and hex hashes of the same bytes. The first is that of the file read back.
            MD5 is only ever compared with what a server says of a file that we wrote; it is no
            protection against a person.
    """

    size_bytes: int
    hashes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, buffers: Iterable[Buffer], names: Iterable[str] = SERVER_HASHES) -> Self:
        """The content of `buffers`, one after the other.

        Args:
            names: of the hashes, as in `Place.hashes`.
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
        """Raises ValueError where the place does not say that it compares this one."""
        for known, value in self.hashes:
            if known == name:
                return value
        raise InputError("backup.hash_not_declared", hash_name=name)


class Evidence(enum.StrEnum):
    """How the bytes of a file at a place were compared, from the strongest to the weakest."""

    CHECKSUM = "service checksum"  # the service computes it
    READ_BACK = "read-back"
    MOUNT = "mount cache"  # read through a mount, which may show what it keeps on this machine
    BACKEND = "storage backend"  # it says yes, and does not say how


def _digest(name: str) -> Digest:
    return hashlib.md5(usedforsecurity=False) if name == "md5" else new_digest(name)


class Place(FileOperations, abc.ABC):
    """Where backups lie. Every method raises OSError and nothing else, unless it says so.

    FileNotFoundError means that the file is not there; a place that cannot be reached is another
    OSError (`errno.ENOTCONN` where nothing better is known).

    Attributes:
        url: the place as people write it, without any secret.
        is_slow: whether bytes cost more time than compressing them.
        hashes: of a file, that `confirm` compares; each is a pass over all bytes.
        identity: the id that `identify` found; None: nobody has asked.
    """

    url: str
    is_slow: bool
    is_direct = False  # read back is what `read` brings
    hashes: Sequence[str] = SERVER_HASHES
    identity: str | None = None

    def identify(self, known: str | None = None) -> str:
        """Find out which place this is by its marker, which is made at first contact. From here on
        it is no other: every write and every confirmation looks at the marker again.

        Args:
            known: the id that it must have; None: whichever it has.

        Returns:
            Its id.

        Raises:
            OSError: it does not answer, or refuses; ENOTCONN: it is another place.
        """
        if known is not None:
            self.identity = known
            self.require_identity()
            return known
        self.identity = None
        ids = ids_at(self)
        self.identity = ids[0] if ids else mark(self)
        self.require_identity()
        return self.identity

    def require_identity(self) -> None:
        """Look at the marker, if `identify` was called.

        Raises:
            OSError: it does not answer; ENOTCONN: this is another place by now, such as the empty
                folder below a mount that went away.
        """
        if self.identity is not None and not has_id(self, self.identity):
            actual = "another place" if ids_at(self) else phrase("backup.folder_without_marker")
            raise OSError(
                errno.ENOTCONN,
                f"{self.url} is {actual}, not the place that this run is copied to: is the right"
                " disk mounted? Or make this its place:"
                f" temper backup create RUN --place {self.url}",
            )

    def require_reachable(self) -> None:
        """Refuse what shows without connecting to anything, and without writing.

        Raises:
            OSError: the place cannot be used as it is.
        """
        return

    def probe(self) -> None:
        """Write a small file and remove it: who may not do that cannot keep a backup here.

        Raises:
            OSError: the place does not answer, or refuses.
        """
        path = FOLDER / f"{PROBE}{secrets.token_hex(4)}"
        self.write(path, [b"may be removed"])
        with contextlib.suppress(FileNotFoundError):  # somebody else has swept
            self.remove(path)

    def sweep(self, directory: Path) -> None:
        """Remove what killed processes have left half-written in `directory`, and their probes.

        Raises:
            OSError: the place does not answer, or refuses.
        """
        with contextlib.suppress(FileNotFoundError):
            for name in self.names(FOLDER):
                if name.startswith(PROBE):
                    self.remove(FOLDER / name)

    @abc.abstractmethod
    def confirm(self, path: Path, content: Content) -> bool | Evidence:
        """Whether the bytes of `path` are known to lie where this machine's death cannot reach.

        Returns:
            False: not yet, ask again later. Otherwise how they were compared; True is taken for
            `Evidence.BACKEND`.

        Raises:
            StorageError: it holds other bytes, or is gone: write it again.
            OSError: the place cannot be reached.
        """

    def advice(self, error: OSError) -> str:
        """One sentence: what a person can do about `error`, whoever asks; the copier goes on by
        itself when that is done."""
        return phrase("backup.check_destination_reachable", url=self.url)

    def caution(self, run_directory: Path) -> str | None:
        """One sentence on what this place does not protect `run_directory` from; None: nothing."""
        return None

    def parts_of(self, path: Path) -> tuple[str, ...]:
        """The names that lead from the place to `path`.

        Raises:
            ValueError: it leads out of the place.
        """
        if path.is_absolute() or ".." in path.parts:
            raise InputError("backup.path_outside_destination", path=path, url=self.url)
        return path.parts

    @abc.abstractmethod
    def read(self, path: Path) -> Iterator[bytes]:
        """The bytes of a file, a few megabytes at a time."""

    def read_into(self, path: Path, memory: memoryview) -> Iterator[int]:
        """As in FileOperations; from here bytes come so slowly that copying them costs nothing."""
        end = 0
        for chunk in self.read(path):
            fits = chunk[: len(memory) - end]
            memory[end : end + len(fits)] = fits
            end += len(fits)
            yield end

    @abc.abstractmethod
    def size(self, path: Path) -> int:
        """Bytes in a file."""

    @abc.abstractmethod
    def names(self, directory: Path) -> list[str]:
        """What is in `directory` now. FileNotFoundError: nothing was ever put there."""

    @abc.abstractmethod
    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        """Put a file there, whole; what had the name before (a damaged copy) is replaced.

        The directory is made where a place has directories.
        """

    def create(self, path: Path, data: bytes) -> bool | None:
        """Create a small file only if no file of its name exists. If several machines try at the
        same instant, one succeeds. The file is whole, and durable when this returns.

        Returns:
            True if it was created, False if there is one already, None if this backend cannot
            create on a condition; nothing was written then.
        """
        return None

    @abc.abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a file, so that it no longer takes space where that is possible."""

    def free_bytes(self, directory: Path) -> int | None:
        return None

    def make_directory(self, directory: Path) -> None:
        """Nothing: `write` makes what it needs."""

    def sync_file(self, path: Path) -> None:
        """Nothing: `write` returns when the place has the bytes."""

    def sync_directory(self, directory: Path) -> None:
        """Nothing: `write` returns when the place has the name."""

    def rename(self, source: Path, target: Path) -> None:
        """A copy, then a removal: few places can rename, and none of the others says when."""
        self.write(target, list(self.read(source)))
        self.remove(source)

    def truncate(self, path: Path) -> None:
        """Make a file empty."""
        self.write(path, [])

    def forget_cached(self, path: Path) -> None:
        """Nothing: what is read comes from the place."""

    def close(self) -> None:
        """Finish what was begun (removals that a place gathers); the place can still be used."""


def require_content(place: Place, path: Path, content: Content) -> None:
    """Read a file anew and compare it with what was written.

    Raises:
        StorageError: it holds other bytes, or is gone.
        OSError: it cannot be read.
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
