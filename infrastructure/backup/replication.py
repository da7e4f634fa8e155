"""Copies a version from one store to another: objects first, the manifest last, each confirmed.

What is on its way holds its files open, so rotation may remove them meanwhile. Every byte is
compared with its name while it is read: a damaged object is never copied whole.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infrastructure.backup.bandwidth import Bandwidth, Paced
from infrastructure.backup.codec import LARGEST_BYTES, SUFFIX, compress
from infrastructure.backup.file_operations import Buffer
from infrastructure.backup.manifest import Manifest, Pack
from infrastructure.backup.open_object import OpenFile, PackedObject, Progress, open_object
from infrastructure.backup.places.base import Content, Place
from infrastructure.backup.store import Store
from infrastructure.core.errors import StorageError

# Written and not confirmed yet: a mounted Drive holds these on this machine's disk.
WINDOW_BYTES = 512 * 1024**2
REWRITE_SECONDS = 30 * 60.0  # mounts were seen to lose an upload: then it is written again
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 15.0  # between two questions whether it is there


@dataclass
class Sent:
    """A file that was written to a place, or found there."""

    path: Path
    content: Content
    written_at: float
    confirmed_at: float | None = None


@dataclass
class Link:
    """The way to the store `run_id` at a place, and what was learned about it in this session.

    Attributes:
        compresses: write an object compressed where that is smaller.
        fresh_seconds: how long a confirmation counts. Half the time for which an object without a
            name is left alone, so that none is removed that a manifest is about to name.
        sent: objects by hash.
        num_done: grows with every file that was written or confirmed.
    """

    place: Place
    run_id: str
    compresses: bool = False
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    clock: Callable[[], float] = time.monotonic
    fresh_seconds: float = 1800.0
    sent: dict[str, Sent] = field(default_factory=dict)
    num_done: int = 0

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

    def confirms(self, sent: Sent) -> bool:
        """Ask whether a file is safe; False: not yet.

        Raises:
            OSError: the place does not answer.
            StorageError: something else is there under this name.
        """
        try:
            if not self.place.confirm(sent.path, sent.content):
                return False
        except FileNotFoundError:  # on a mount no proof that it is gone
            return False
        sent.confirmed_at = self.clock()
        self.num_done += 1
        return True

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there.

        Raises:
            OSError: the place refuses.
        """
        with contextlib.suppress(FileNotFoundError):
            self.place.remove(path)


class Upload:
    """One version on its way. All its files are opened here, before anything is copied.

    Args:
        before_manifest: called when all objects are confirmed; what it raises ends the upload.
        on_piece: called after each megabyte.

    Raises:
        CheckpointError: the version is damaged on this machine, or was removed meanwhile.
    """

    def __init__(
        self,
        local: Store,
        name: str,
        link: Link,
        *,
        before_manifest: Callable[[], None],
        on_piece: Callable[[], None],
    ) -> None:
        self.name, self.link = name, link
        self.manifest: Manifest = local.read(name)
        self.total_bytes = sum(pack.size_bytes for pack in self.manifest.packs)
        self._before_manifest, self._on_piece = before_manifest, on_piece
        self._manifest_bytes = local.objects.read_small(local.manifest_path(name))
        self._manifest_sent: Sent | None = None
        self._piece_bytes = 0
        self._files: dict[str, OpenFile] = {}
        try:
            for pack in self.manifest.packs:
                self._files[pack.hash] = open_object(local, pack, self.manifest.hash_name)
        except BaseException:
            self.close()
            raise

    @property
    def done_bytes(self) -> int:
        """Bytes of objects that are confirmed, or on their way at this moment."""
        confirmed = (p.size_bytes for p in self.manifest.packs if self.link.is_confirmed(p.hash))
        return min(self.total_bytes, sum(confirmed) + self._piece_bytes)

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def steps(self) -> Iterator[float]:
        """Copy, one small unit of work after the other; yields the seconds to wait before the next.
        When an error ended it, it can be begun again and does only what is missing.

        Raises:
            OSError: the place does not answer, or refuses.
            StorageError: it does not hold what was written to it.
            CheckpointError: the version is damaged on this machine.
        """
        packs = self.manifest.packs
        for pack in packs:
            while self._is_window_full(pack):
                yield from self._ask_all(packs)
            if pack.hash not in self.link.sent:
                self._send(pack)
                yield 0.0
        while not all(self.link.is_confirmed(pack.hash) for pack in packs):
            yield from self._ask_all(packs)
        self._before_manifest()
        yield from self._put_manifest()

    def _is_window_full(self, next_pack: Pack) -> bool:
        waiting = [
            sent.content.size_bytes
            for pack in self.manifest.packs
            if (sent := self.link.sent.get(pack.hash)) and sent.confirmed_at is None
        ]
        return bool(waiting) and sum(waiting) + next_pack.size_bytes > WINDOW_BYTES

    def _ask_all(self, packs: Sequence[Pack]) -> Iterator[float]:
        """Ask for everything that is not confirmed, until something is."""
        wait = FIRST_WAIT_SECONDS
        while True:
            news = False
            for pack in packs:
                if pack.hash in self.link.sent and not self.link.is_confirmed(pack.hash):
                    news |= self._ask(pack)
                    yield 0.0
            if news:
                return
            yield wait
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _ask(self, pack: Pack) -> bool:
        """Whether an object that was sent is confirmed now; one that got lost is sent again."""
        sent = self.link.sent[pack.hash]
        if self._is_confirmed(sent, lambda: self.link.sent.pop(pack.hash)):
            return True
        if self.link.clock() - sent.written_at > REWRITE_SECONDS:
            self._send(pack, is_lost=True)
        return False

    def _is_confirmed(self, sent: Sent, forget: Callable[[], object]) -> bool:
        try:
            if self.link.confirms(sent):
                return True
        except StorageError:
            forget()  # and write it anew
            raise
        if sent.confirmed_at is not None:  # gone since: give it time to come back by itself
            sent.written_at, sent.confirmed_at = self.link.clock(), None
        return False

    def _send(self, pack: Pack, is_lost: bool = False) -> None:
        """Write an object, unless the place has it: confirmed, or by its size on its way."""
        *others, (sent, buffers) = self._forms(pack)
        for other, _ in others:
            if self._is_there(other):
                self.link.sent[pack.hash] = other
                return
        if is_lost or not self._is_there(sent, or_on_its_way=True):
            self._write(sent, buffers)
        self.link.sent[pack.hash] = sent

    def _forms(self, pack: Pack) -> list[tuple[Sent, Sequence[Buffer]]]:
        """The object plain and, where that is wanted and smaller, compressed; the last is written.

        Raises:
            CheckpointError: its bytes are not those of its name.
        """
        file = self._files[pack.hash]
        plain: Sequence[Buffer] = file
        packed = None
        if isinstance(file, PackedObject):
            packed, plain = file.load()
        elif self.link.compresses and pack.size_bytes <= LARGEST_BYTES:
            packed = compress(b"".join(bytes(piece) for piece in file))
        forms = [(self._sent(self.link.store.objects.path_of(pack.hash), plain), plain)]
        if packed is not None and len(packed) < pack.size_bytes:
            path = self.link.store.objects.path_of(pack.hash + SUFFIX)
            forms.append((self._sent(path, [packed]), [packed]))
        return forms

    def _sent(self, path: Path, buffers: Sequence[Buffer]) -> Sent:
        return Sent(path, Content.of(buffers), self.link.clock())

    def _is_there(self, sent: Sent, or_on_its_way: bool = False) -> bool:
        """Whether the place has this already; what a killed copier left cut is not it."""
        try:
            if self.link.confirms(sent):
                return True
            return or_on_its_way and self.link.place.size(sent.path) == sent.content.size_bytes
        except (FileNotFoundError, StorageError):
            return False

    def _write(self, sent: Sent, buffers: Sequence[Buffer]) -> None:
        self.link.place.make_directory(sent.path.parent)
        try:
            self.link.place.write(sent.path, Paced(buffers, self._before_piece))
        finally:
            self._piece_bytes = 0
        sent.written_at = self.link.clock()
        self.link.num_done += 1

    def _before_piece(self, num_bytes: int) -> None:
        self.link.bandwidth.take(num_bytes)
        self._piece_bytes += num_bytes
        self._on_piece()

    def _put_manifest(self) -> Iterator[float]:
        if self._manifest_sent is None:
            self._manifest_sent = self._send_manifest()
        sent = self._manifest_sent
        wait = FIRST_WAIT_SECONDS
        while sent.confirmed_at is None and not self._is_confirmed(sent, self._forget_manifest):
            yield wait
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            if self.link.clock() - sent.written_at > REWRITE_SECONDS:
                self._write(sent, [self._manifest_bytes])

    def _send_manifest(self) -> Sent:
        sent = self._sent(self.link.store.manifest_path(self.name), [self._manifest_bytes])
        if not self._is_there(sent, or_on_its_way=True):
            self._write(sent, [self._manifest_bytes])
        return sent

    def _forget_manifest(self) -> None:
        self._manifest_sent = None


def fetch_version(remote: Store, name: str, local: Store, on_progress: Progress) -> None:
    """Write a version of `remote` into `local` under the same name, its manifest last, everything
    verified and on the disk. What is whole here already is not fetched again.

    The caller is the one writer of `local`.

    Raises:
        CheckpointError: the version is damaged there, or cannot be read.
        StorageError: this machine's disk refuses.
    """
    manifest = remote.read(name)
    data = remote.objects.read_small(remote.manifest_path(name))
    total_bytes = sum(pack.size_bytes for pack in manifest.packs)
    done_bytes = 0
    try:
        local.prepare()
        missing = [p for p in manifest.packs if not local.objects.is_whole(p, manifest.hash_name)]
        local.objects.require_space(sum(pack.size_bytes for pack in missing))
        for pack in manifest.packs:
            if pack in missing:
                bytes_of_pack = remote.objects.read(pack, manifest.hash_name)
                local.objects.write_pack([bytes_of_pack], manifest.hash_name)
            done_bytes += pack.size_bytes
            on_progress(done_bytes, total_bytes)
        digest = name.rpartition("-")[2]
        local.objects.put(local.manifest_path(name), [data], digest, manifest.hash_name)
    except OSError as error:
        raise StorageError(f"{local.root} does not take version {name[:12]}: {error}") from error
