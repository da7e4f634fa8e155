"""The way to a place, and what was learned about it in this session."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.bandwidth import Bandwidth
from infrastructure.core.errors import StorageError

SURELY_WRONG = 5


@dataclass
class UploadedFile:
    """A file that was written to a place, or found there."""

    path: Path
    content: Content
    written_at: float
    confirmed_at: float | None = None


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
        try:
            is_safe = self.place.confirm(sent.path, sent.content)
        except FileNotFoundError:  # on a mount no proof that it is gone
            is_safe = False
        except StorageError:
            self.num_wrong[sent.path] += 1
            raise
        self.num_wrong.pop(sent.path, None)
        if not is_safe:
            return False
        sent.confirmed_at = self.clock()
        self.is_doubtful = False
        self.num_done += 1
        self.num_confirmed += 1
        return True

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
