"""A session with a backup destination: access to it, and the state of its files."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from infrastructure.backup.backends.base import Content, Evidence, Place
from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.bandwidth import Bandwidth
from infrastructure.core.errors import StorageError

SURELY_WRONG = 5


@dataclass
class UploadedFile:
    """A file that was written to a destination, or found there.

    Attributes:
        confirmed_at: the time when its bytes were last compared and matched, or None if the file
            was never confirmed, or was later found to be missing or different.
        present_at: the time when the file was last seen with its size, or confirmed.
        looked_at: the time of the last check, whatever its result.
        evidence: how its bytes were compared.
        problem: what was wrong with the file at the last check.
    """

    path: Path
    content: Content
    written_at: float
    confirmed_at: float | None = None
    present_at: float = float("-inf")
    looked_at: float = float("-inf")
    evidence: Evidence = Evidence.BACKEND
    problem: str | None = None

    def is_confirmed_by(self, place: Place, now: float) -> bool:
        """Return whether the destination confirms the file, and record the result.

        Raises:
            OSError: if the destination does not respond; FileNotFoundError if the file does not
                exist.
            StorageError: if the file is gone, or a different one has its name.
        """
        self.looked_at = now  # before the call: the result may be outdated when it returns
        try:
            answer = place.confirm(self.path, self.content)
        except StorageError as error:
            self.confirmed_at, self.problem = None, str(error)
            raise
        if not answer:
            return False
        self.confirmed_at = self.present_at = now
        self.evidence = answer if isinstance(answer, Evidence) else Evidence.BACKEND
        self.problem = None
        return True


class Seen(NamedTuple):
    """What is known of several copied files together.

    Attributes:
        present_at, compared_at: the oldest times at which one of them was seen there, and compared.
        evidence: the weakest evidence that one of them is intact.
    """

    present_at: float
    compared_at: float
    evidence: Evidence


def seen_of(files: Iterable[UploadedFile | None]) -> Seen | None:
    """Return the combined state of `files`; None if there are no files or one is not confirmed."""
    present, compared, evidence = [], [], []
    for file in files:
        if file is None or file.confirmed_at is None:
            return None
        present.append(file.present_at)
        compared.append(file.confirmed_at)
        evidence.append(file.evidence)
    if not present:
        return None
    strength = [*Evidence]
    return Seen(min(present), min(compared), max(evidence, key=strength.index))


@dataclass
class RemoteSession:
    """A session with the store `run_id` at a destination, and the state of its files.

    Attributes:
        compresses: whether to write an object compressed if that is smaller.
        fresh_seconds: how long a confirmation is valid. It is half the time after which an unnamed
            object is removed, so an object that a manifest is about to name is never removed.
        sent: the sent files; objects by hash, manifests by name.
        named: objects and checkpoints that may be in use at the destination. They are never
            overwritten, because a file that seems to be missing or wrong on a mounted folder may be
            intact in the cloud, and overwriting it would first remove it.
        num_wrong: how often in a row a file was found to be different.
        is_doubtful: whether nothing was confirmed for so long that the destination may never
            confirm anything.
        num_done: the number of files that were written or confirmed.
        num_confirmed: the number of files that were confirmed.
    """

    place: Place
    run_id: str
    compresses: bool = False
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    clock: Callable[[], float] = time.monotonic
    fresh_seconds: float = 1800.0
    sent: dict[str, UploadedFile] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    num_wrong: Counter[Path] = field(default_factory=Counter)
    is_doubtful: bool = False
    num_done: int = 0
    num_confirmed: int = 0

    def __post_init__(self) -> None:
        self.store = Store(Path(self.run_id), self.place)
        self.place.run = self.run_id

    def is_confirmed(self, digest: str) -> bool:
        """Return whether an object was confirmed within `fresh_seconds`."""
        sent = self.sent.get(digest)
        return (
            sent is not None
            and sent.confirmed_at is not None
            and self.clock() - sent.confirmed_at < self.fresh_seconds
        )

    def confirms(self, sent: UploadedFile) -> bool:
        """Return whether the destination confirms that a file is safe. False means not yet.

        Raises:
            OSError: if the destination does not respond.
            StorageError: if a different file has its name.
        """
        if not self._compares(sent):
            return False
        self.is_doubtful = False
        self.num_done += 1
        self.num_confirmed += 1
        return True

    def still_has(self, sent: UploadedFile, *, reads: bool) -> bool:
        """Check a confirmed file again. Return False if the destination does not show it now.

        On a mount, False does not prove that the file is gone. This check does not count as
        progress of the upload.

        Args:
            reads: whether to read the bytes back if they cannot be compared otherwise. If False,
                only the size is compared in that case.

        Raises:
            OSError: if the destination does not respond.
            StorageError: if the file is gone, or a different one has its name.
        """
        is_cheap, began = sent.evidence in (Evidence.CHECKSUM, Evidence.MOUNT), self.clock()
        if sent.confirmed_at is not None and not (is_cheap or reads):
            with contextlib.suppress(FileNotFoundError):
                if self.place.size(sent.path) == sent.content.size_bytes:
                    sent.present_at = sent.looked_at = began
                    return True
        return self._compares(sent)

    def _compares(self, sent: UploadedFile) -> bool:
        try:
            is_safe = sent.is_confirmed_by(self.place, self.clock())
        except FileNotFoundError:  # on a mount, this does not prove that it is gone
            is_safe = False
        except StorageError:
            self.num_wrong[sent.path] += 1
            raise
        self.num_wrong.pop(sent.path, None)
        return is_safe

    def files_of(self, name: str, manifest: Manifest) -> Iterator[UploadedFile | None]:
        """Yield the record of each file of a remote checkpoint; None for a file without a record.

        Objects that other machines copied to the destination are not included, because the sessions
        of those machines track them.
        """
        yield self.sent.get(name)
        for pack in manifest.packs:
            file = self.sent.get(pack.hash)
            if file is not None or pack.hash not in manifest.copied_apart:
                yield file

    def is_surely_wrong(self, path: Path) -> bool:
        """Return whether a file was wrong in so many consecutive checks that it must be damaged.

        Fewer wrong results may be due to a temporary failure of a mounted folder.
        """
        return self.num_wrong[path] >= SURELY_WRONG

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists.

        Raises:
            OSError: if the destination fails.
        """
        with contextlib.suppress(FileNotFoundError):
            self.place.remove(path)
