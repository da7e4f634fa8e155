"""The upload of a finished folder, such as `final/` of a run, to a destination as plain files.

A SHA256SUMS file is written last: the folder is complete when that file exists and the other files
match it.
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
    """A request to publish a folder.

    Attributes:
        token: identifies the request in the status; each request has its own.
        folder: the path of a folder on this machine.
        name: the name of the copy at the destination.
        files: names of the files in `folder` to publish; empty means all of them.
        replaces: overwrite a different folder of that name. If False, the existing folder is kept,
            and the copy is called `<name>-<8 hex digits>`.
    """

    token: str
    folder: str
    name: str
    files: tuple[str, ...] = ()
    replaces: bool = False

    def to_line(self) -> str:
        """Return the request as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """Create a request from the result of `to_line`."""
        values: dict[str, Any] = json.loads(line)
        return cls(**{**values, "files": tuple(values["files"])})


class PublishedFolder:
    """A folder that is being published at `place`, under `parent`.

    Attributes:
        target: the path of the copy at the destination, or None before it is known.
        seen: the files that the destination has confirmed. A file that is lost later remains in it
            until the file is restored.

    Raises:
        ValueError: if the folder is empty or missing.
        OSError: if the folder cannot be read.
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
        """Write the missing files one by one until all are confirmed. Yield the seconds to wait.

        A second call writes only the files that are still missing.

        Raises:
            OSError: if the destination does not respond or fails.
            StorageError: if the destination does not hold what was written to it.
            CheckpointError: if the folder cannot be read here.
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
        """Return the hashes to compute for each file.

        SHA-256 is always included, for SHA256SUMS.
        """
        return self.place.hashes if "sha256" in self.place.hashes else ["sha256"]

    def _target(self) -> Path:
        plain = self.parent / self.what.name
        if self.what.replaces or self._may_be(plain):
            return plain
        return self.parent / f"{self.what.name}-{hashlib.sha256(self._sums).hexdigest()[:8]}"

    def _may_be(self, target: Path) -> bool:
        """Return whether this folder may be written to `target` without overwriting other files."""
        try:
            return b"".join(self.place.read(target / SUMS)) == self._sums
        except FileNotFoundError:
            return not any(self._is_other(target, path) for path in self._contents)

    def _is_other(self, target: Path, path: Path) -> bool:
        """Return whether the destination has a file of this name with different bytes."""
        at, content = target / self._relative(path), self._contents[path]
        try:
            if self.place.size(at) == content.size_bytes:
                self.place.confirm(at, content)  # not confirmed yet counts as the same
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
        """Write a file, unless it exists or is still being uploaded.

        Return whether the destination confirms it.
        """
        try:
            if self._is_confirmed(at, content):
                return True
            if self.place.size(at) == content.size_bytes:
                return False  # still being uploaded
        except (FileNotFoundError, StorageError):  # the file is missing or different
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
    """Return the files of a folder that are to be published.

    Raises:
        ValueError: if there are no such files.
    """
    candidates = [folder / name for name in files] or folder.rglob("*")
    paths = sorted(p for p in candidates if p.is_file() and p.name != SUMS)
    if not paths:
        raise InputError("backup.no_files_to_publish", folder=folder)
    return paths


def problems_at(place: Place, parent: Path) -> Iterator[tuple[str, str | None]]:
    """Compare every complete folder published under `parent` with its checksums.

    Yields:
        The name of the folder, and a message on what is wrong, or None if it is intact.

    Raises:
        OSError: if the destination does not respond.
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
    """Return the checksums of a published folder, name → SHA-256; None if it is incomplete.

    Raises:
        OSError: if the destination does not respond.
        DamagedFileError: if the file of checksums is not one that Temper can have written.
    """
    try:
        data = b"".join(place.read(target / SUMS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parse_sums(data.decode(errors="replace")) or None


def compare(place: Place, target: Path, sums: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each file of a published folder that is missing or does not match.

    Raises:
        OSError: if the destination does not respond.
    """
    for name, digest in sums.items():
        try:
            actual = _sha256(place, target / name)
        except FileNotFoundError:
            yield phrase("backup.store_file_missing", path=target / name)
            continue
        if actual != digest:
            yield phrase("backup.published_file_mismatch", path=target / name)


def fetch_folder(
    place: Place, target: Path, sums: Mapping[str, str], folder: Path, on_progress: Progress
) -> None:
    """Write a published folder to `folder` on this machine, atomically.

    Raises:
        DamagedFileError: if a file does not match its checksum.
        OSError: if the destination does not respond, or the local disk fails.
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
