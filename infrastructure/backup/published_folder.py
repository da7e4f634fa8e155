"""Copies a finished folder, such as a run's `final/`, to a place as it is: plain files.

A SHA256SUMS file goes last, so the folder is whole when that is there. Nothing that is there and
different is touched: the folder takes another name then.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infrastructure.backup.bandwidth import Bandwidth, Paced
from infrastructure.backup.open_object import OpenFile
from infrastructure.backup.places.base import Content, Place
from infrastructure.core.errors import StorageError

SUMS = "SHA256SUMS"
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 15.0


@dataclass
class PublishedFolder:
    """`folder` on its way to `place`, under `parent`, as `name` or `name-<8 hex digits>`.

    Raises:
        ValueError: the folder is empty or missing.
        OSError: it cannot be read.
    """

    place: Place
    parent: Path
    folder: Path
    name: str = "final"
    bandwidth: Bandwidth | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        paths = sorted(p for p in self.folder.rglob("*") if p.is_file() and p.name != SUMS)
        if not paths:
            raise ValueError(f"{self.folder} holds no files: there is nothing to publish")
        self._contents = {path: _content_of(path) for path in paths}
        lines = [f"{c.sha256}  {self._relative(p)}\n" for p, c in self._contents.items()]
        self._sums = "".join(lines).encode()

    def copy(self, seconds: float) -> Path:
        """Write the folder, each file confirmed; its path at the place.

        Raises:
            StorageError: that was not done within `seconds`; call again to go on.
        """
        deadline = self.clock() + seconds
        wait = FIRST_WAIT_SECONDS
        while True:
            problem = "the place has not confirmed it yet"
            try:
                self.place.make_directory(self.parent)
                target = self._target()
                if self._put_all(target):
                    return target
            except (OSError, StorageError) as error:
                advice = self.place.advice(error) if isinstance(error, OSError) else ""
                problem = "; ".join(filter(None, [str(error), advice]))
            if self.clock() + wait > deadline:
                raise StorageError(f"{self.folder} is not safe at {self.place.url}: {problem}")
            self.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _target(self) -> Path:
        plain = self.parent / self.name
        if self._may_be(plain):
            return plain
        return self.parent / f"{self.name}-{hashlib.sha256(self._sums).hexdigest()[:8]}"

    def _may_be(self, target: Path) -> bool:
        """Whether what is at `target` is this folder, or a part of it, or nothing."""
        try:
            return b"".join(self.place.read(target / SUMS)) == self._sums
        except FileNotFoundError:
            return not any(self._is_other(target, path) for path in self._contents)

    def _is_other(self, target: Path, path: Path) -> bool:
        """Whether a file of other bytes is there."""
        at, content = target / self._relative(path), self._contents[path]
        try:
            if self.place.size(at) == content.size_bytes:
                self.place.confirm(at, content)  # or it is not confirmed yet: then it is not told
                return False
        except FileNotFoundError:
            return False
        except StorageError:
            return True
        return True

    def _put_all(self, target: Path) -> bool:
        """Write what is missing; whether all of it is confirmed."""
        confirmed = [self._put_file(target, path) for path in self._contents]
        if not all(confirmed):
            return False
        return self._put(target / SUMS, [self._sums], Content.of([self._sums]))

    def _put_file(self, target: Path, path: Path) -> bool:
        with path.open("rb", buffering=0) as file:
            buffers = OpenFile(path, file)
            return self._put(target / self._relative(path), buffers, self._contents[path])

    def _put(self, at: Path, buffers: OpenFile | list[bytes], content: Content) -> bool:
        if not self._is_sent(at, content):
            take = self.bandwidth.take if self.bandwidth else _unbounded
            self.place.write(at, Paced(buffers, take))
        return self.place.confirm(at, content)

    def _is_sent(self, at: Path, content: Content) -> bool:
        """Whether a file is there, or on its way."""
        try:
            confirmed = self.place.confirm(at, content)
            return confirmed or self.place.size(at) == content.size_bytes
        except (FileNotFoundError, StorageError):
            return False

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _unbounded(num_bytes: int) -> None:
    return


def _content_of(path: Path) -> Content:
    with path.open("rb", buffering=0) as file:
        return Content.of(OpenFile(path, file))
