"""The way to a place, and what was learned about it in this session."""

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
    """A file that was written to a place, or found there.

    Attributes:
        confirmed_at: when its bytes were compared last, all as they were written; None: they were
            not, or it was missing or different since.
        present_at: when it was last there with its size, or more is known.
        looked_at: when it was last looked for, whatever came of it.
        evidence: how its bytes were compared.
        problem: what was wrong with it at the last look.
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
        """Let a place compare it, and note what came of that.

        Raises:
            OSError: the place does not answer; FileNotFoundError: it is not there.
            StorageError: it is gone, or something else is there under this name.
        """
        self.looked_at = now  # what is answered may have been so then, and no longer
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
    """What is known of several files together: the oldest and the weakest of each."""

    present_at: float
    compared_at: float
    evidence: Evidence


def seen_of(files: Iterable[UploadedFile | None]) -> Seen | None:
    """What is known of all of `files`; None: one of them is not known to be there as it was
    written, or there are none."""
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
    """The way to the store `run_id` at a place, and what was learned about it in this session.

    Attributes:
        compresses: write an object compressed where that is smaller.
        fresh_seconds: how long a confirmation counts. Half the time for which an object without a
            name is left alone, so that none is removed that a manifest is about to name.
        sent: objects by hash, manifests by name.
        named: objects and versions that may be in use there. Nothing of theirs is ever written
            over: what seems to be missing or wrong on a mount may be whole in the cloud, and the
            mount removes a file before it writes another of its name.
        num_wrong: how often in a row a file was found to be another.
        is_doubtful: nothing was confirmed for so long that it may never be.
        num_done, num_confirmed: files that were written or confirmed; that were confirmed.
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

    def is_confirmed(self, digest: str) -> bool:
        """Whether an object was confirmed not long ago."""
        sent = self.sent.get(digest)
        return (
            sent is not None
            and sent.confirmed_at is not None
            and self.clock() - sent.confirmed_at < self.fresh_seconds
        )

    def confirms(self, sent: UploadedFile) -> bool:
        """Ask whether a file is safe; False: not yet.

        Raises:
            OSError: the place does not answer.
            StorageError: something else is there under this name.
        """
        if not self._compares(sent):
            return False
        self.is_doubtful = False
        self.num_done += 1
        self.num_confirmed += 1
        return True

    def still_has(self, sent: UploadedFile, *, reads: bool) -> bool:
        """Look again at a file that was confirmed; False: it is not to be seen now, which on a
        mount is no proof that it is gone. It is no news for an upload that waits.

        Args:
            reads: compare the bytes although they have to be read back for that; otherwise the
                size has to do for these.

        Raises:
            OSError: the place does not answer.
            StorageError: it is gone, or something else is there under this name.
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
        except FileNotFoundError:  # on a mount no proof that it is gone
            is_safe = False
        except StorageError:
            self.num_wrong[sent.path] += 1
            raise
        self.num_wrong.pop(sent.path, None)
        return is_safe

    def files_of(self, name: str, manifest: Manifest) -> Iterator[UploadedFile | None]:
        """The files of a version there, as this session knows them; None for one of which nothing
        is known. What other machines have copied there is theirs to know."""
        yield self.sent.get(name)
        for pack in manifest.packs:
            file = self.sent.get(pack.hash)
            if file is not None or pack.hash not in manifest.copied_apart:
                yield file

    def is_surely_wrong(self, path: Path) -> bool:
        """Whether a file was wrong so often in a row that no mount's bad moment explains it."""
        return self.num_wrong[path] >= SURELY_WRONG

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there.

        Raises:
            OSError: the place refuses.
        """
        with contextlib.suppress(FileNotFoundError):
            self.place.remove(path)
