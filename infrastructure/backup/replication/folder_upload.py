"""Copies a finished folder, such as a run's `final/`, to a place as it is: plain files.

A SHA256SUMS file goes last, so the folder is whole when that is there and says what is beside it.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.replication.bandwidth import Bandwidth, Paced
from infrastructure.backup.replication.object_reader import OpenFile, Progress
from infrastructure.backup.replication.remote_session import UploadedFile
from infrastructure.core.checksums import SUMS, parse_sums, write_sums
from infrastructure.core.errors import CheckpointError, DamagedFileError, InputError, StorageError
from infrastructure.core.files import whole_directory
from infrastructure.core.messages import phrase

STORE_NAMES = ("objects", "versions", "claims", "tmp", "lock")
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 15.0


@dataclass(frozen=True)
class Publication:
    """What is to be published.

    Attributes:
        token: by it the answer is found; another question for the same folder has another one.
        folder: a folder of this machine.
        name: what it is called at the place.
        files: names in `folder`; none: all that are in it.
        replaces: what is there and different is written over. Otherwise it stays as it is, and this
            folder takes another name: `<name>-<8 hex digits>`.
    """

    token: str
    folder: str
    name: str
    files: tuple[str, ...] = ()
    replaces: bool = False

    def to_line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """What `to_line` gave."""
        values: dict[str, Any] = json.loads(line)
        return cls(**{**values, "files": tuple(values["files"])})


class PublishedFolder:
    """A publication on its way to `place`, under `parent`.

    Attributes:
        target: where it is, or will be; None before that is known.
        seen: its files at the place, as they were confirmed; one that was lost since stays among
            them until it is there again.

    Raises:
        ValueError: the folder is empty or missing.
        OSError: it cannot be read.
    """

    def __init__(
        self,
        place: Place,
        parent: Path,
        what: Publication,
        bandwidth: Bandwidth | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place, self.parent, self.what, self.clock = place, parent, what, clock
        self.seen: dict[Path, UploadedFile] = {}
        self.folder, self.bandwidth = Path(what.folder), bandwidth
        self.target: Path | None = None
        self._contents = {
            path: _content_of(path, self._hashes()) for path in paths_in(self.folder, what.files)
        }
        lines = [f"{c.sha256}  {self._relative(p)}\n" for p, c in self._contents.items()]
        self._sums = "".join(lines).encode()
        self.total_bytes = sum(content.size_bytes for content in self._contents.values())
        self.done_bytes = 0

    def steps(self) -> Iterator[float]:
        """Write what is missing, one file after the other, until each is confirmed; yields the
        seconds to wait before the next. Begun again, it does what is missing.

        Raises:
            OSError: the place does not answer, or refuses.
            StorageError: it does not hold what was written to it.
            CheckpointError: the folder cannot be read here.
        """
        self.place.make_directory(self.parent)
        target = self._target()
        if target != self.target:
            self.target, self.seen = target, {}
        wait, waiting = FIRST_WAIT_SECONDS, dict(self._contents)
        self.done_bytes = 0
        while waiting:
            for path, content in list(waiting.items()):
                if self._put_file(target, path, content):
                    self.done_bytes += waiting.pop(path).size_bytes
                yield 0.0
            if waiting:
                yield wait
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        while not self._put(target / SUMS, [self._sums], Content.of([self._sums], self._hashes())):
            yield wait
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _hashes(self) -> Sequence[str]:
        """SHA-256 is among them: the sums are of that."""
        return self.place.hashes if "sha256" in self.place.hashes else ["sha256"]

    def _target(self) -> Path:
        plain = self.parent / self.what.name
        if self.what.replaces or self._may_be(plain):
            return plain
        return self.parent / f"{self.what.name}-{hashlib.sha256(self._sums).hexdigest()[:8]}"

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

    def _put_file(self, target: Path, path: Path, content: Content) -> bool:
        try:
            file = path.open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError("backup.file_unreadable", path=path, error=error) from error
        with file:
            return self._put(target / self._relative(path), OpenFile(path, file), content)

    def _put(self, at: Path, buffers: OpenFile | list[bytes], content: Content) -> bool:
        """Write a file unless it is there or on its way; whether it is confirmed."""
        try:
            if self._is_confirmed(at, content):
                return True
            if self.place.size(at) == content.size_bytes:
                return False  # on its way
        except (FileNotFoundError, StorageError):  # nothing is there, or something else
            pass
        take = self.bandwidth.take if self.bandwidth else _unbounded
        self.place.write(at, Paced(buffers, take))
        return self._is_confirmed(at, content)

    def _is_confirmed(self, at: Path, content: Content) -> bool:
        file = UploadedFile(at, content, self.clock())
        if not file.is_confirmed_by(self.place, self.clock()):
            return False
        self.seen[at] = file
        return True

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def paths_in(folder: Path, files: Sequence[str] = ()) -> list[Path]:
    """The files of a folder that are published.

    Raises:
        ValueError: there are none.
    """
    candidates = [folder / name for name in files] or folder.rglob("*")
    paths = sorted(p for p in candidates if p.is_file() and p.name != SUMS)
    if not paths:
        raise InputError("backup.no_files_to_publish", folder=folder)
    return paths


def problems_at(place: Place, parent: Path) -> Iterator[tuple[str, str | None]]:
    """Every whole folder that was published under `parent`, compared with its sums: its name, and
    what is wrong with it.

    Raises:
        OSError: the place does not answer.
    """
    try:
        names = place.names(parent)
    except FileNotFoundError:
        return
    for name in names:
        if name in STORE_NAMES:
            continue
        try:
            sums = read_sums(place, parent / name)
        except DamagedFileError as error:
            yield name, str(error)
            continue
        if sums is not None:
            yield name, "; ".join(compare(place, parent / name, sums)) or None


def read_sums(place: Place, target: Path) -> dict[str, str] | None:
    """What a published folder holds: name → SHA-256, as its last file says; None: it is not whole.

    Raises:
        OSError: the place does not answer.
        DamagedFileError: the file says something that no publication wrote.
    """
    try:
        data = b"".join(place.read(target / SUMS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parse_sums(data.decode(errors="replace")) or None


def compare(place: Place, target: Path, sums: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each file of a published folder that is missing or not what its sum says.

    Raises:
        OSError: the place does not answer.
    """
    for name, digest in sums.items():
        try:
            actual = _sha256(place, target / name)
        except FileNotFoundError:
            yield f"{target / name} is missing"
            continue
        if actual != digest:
            yield phrase("backup.published_file_mismatch", path=target / name)


def fetch_folder(
    place: Place, target: Path, sums: Mapping[str, str], folder: Path, on_progress: Progress
) -> None:
    """Write a published folder as `folder` of this machine, whole or not at all.

    Raises:
        DamagedFileError: a file of it is not what its sum says.
        OSError: the place does not answer, or this machine's disk refuses.
    """
    total_bytes = sum(place.size(target / name) for name in sums)
    done_bytes = 0
    with whole_directory(folder) as part:
        for name, digest in sums.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            hasher = hashlib.sha256()
            with path.open("wb") as file:
                for chunk in place.read(target / name):
                    file.write(chunk)
                    hasher.update(chunk)
                    done_bytes += len(chunk)
                    on_progress(done_bytes, total_bytes)
            if hasher.hexdigest() != digest:
                raise DamagedFileError(
                    "backup.fetched_file_mismatch", url=place.url, path=target / name
                )
        write_sums(part)


def _sha256(place: Place, path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in place.read_back(path):
        digest.update(chunk)
    return digest.hexdigest()


def _unbounded(_num_bytes: int) -> None:
    return


def _content_of(path: Path, hashes: Sequence[str]) -> Content:
    with path.open("rb", buffering=0) as file:
        return Content.of(OpenFile(path, file), hashes)
