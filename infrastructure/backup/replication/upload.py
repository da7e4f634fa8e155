"""The upload of a checkpoint to a backup destination: first its objects, then its manifest.

Every file is confirmed. All files of the checkpoint are opened first, so they can be removed on
this machine during the upload. Every object is compared with its hash while it is read, so a
damaged object is never copied completely.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from infrastructure.backup.backends.base import Content
from infrastructure.backup.format.codec import LARGEST_BYTES, SUFFIX, compress
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.manifest import Manifest, Pack
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.bandwidth import Paced
from infrastructure.backup.replication.object_reader import (
    OpenFile,
    OpenObject,
    PackedObject,
    Progress,
    open_object,
)
from infrastructure.backup.replication.remote_session import RemoteSession, UploadedFile
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import CheckpointError, StorageError

# Limit of the bytes that are written and not confirmed yet: a mounted Drive keeps them on this
# machine's disk.
WINDOW_BYTES = 512 * 1024**2
# An upload counts as lost if nothing is confirmed for this long plus the time that its bytes take
# on a slow line; mounts were observed to lose uploads. The second limit is for a destination that
# already failed to confirm one (`is_doubtful`).
PATIENCE_SECONDS, DOUBTFUL_SECONDS = 600.0, 60.0
SLOWEST_BYTES_PER_SECOND = 250_000.0
NUM_LOOKS = 4  # number of checks of a file that seems to be missing
Form = tuple[UploadedFile, Sequence[Buffer]]
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 15.0  # between two checks for confirmation


class ObjectUpload:
    """Objects that are being uploaded to a destination.

    Args:
        files: the bytes of each object, by its hash. Reading them may raise CheckpointError.
        elsewhere: objects of `packs` that are not in `files`, because other machines copied them to
            the destination.
        on_piece: called after each megabyte.
    """

    def __init__(
        self,
        link: RemoteSession,
        packs: Sequence[Pack],
        files: Mapping[str, Sequence[Buffer]],
        *,
        elsewhere: Collection[str] = (),
        on_piece: Callable[[], None] = do_nothing,
    ) -> None:
        self.link, self.packs = link, packs
        self.total_bytes = sum(pack.size_bytes for pack in packs)
        self.patience = PATIENCE_SECONDS + self.total_bytes / SLOWEST_BYTES_PER_SECOND
        self._files, self._elsewhere, self._on_piece = files, elsewhere, on_piece
        self._own = [pack for pack in packs if pack.hash not in elsewhere]
        self._piece_bytes = 0
        self._num_confirmed, self._news_at = -1, link.clock()

    @property
    def done_bytes(self) -> int:
        """The number of bytes that are already confirmed or are being sent."""
        confirmed = (pack.size_bytes for pack in self.packs if self._is_confirmed(pack))
        return min(self.total_bytes, sum(confirmed) + self._piece_bytes)

    @property
    def are_confirmed(self) -> bool:
        """True if all objects are confirmed."""
        return all(map(self._is_confirmed, self.packs))

    def _is_confirmed(self, pack: Pack) -> bool:
        return pack.hash in self._elsewhere or self.link.is_confirmed(pack.hash)

    def steps(self) -> Iterator[float]:
        """Copy in small units of work. Yield the seconds to wait before the next unit.

        After an error, a second call copies only what is missing. The upload ends when all objects
        are confirmed, or when `is_hopeless` returns True.

        Raises:
            OSError: if the destination does not respond or fails.
            StorageError: if the destination does not hold what was written to it.
            CheckpointError: if an object is damaged on this machine, or is missing at the
                destination although another machine copied it there.
        """
        packs = self._own
        self._num_confirmed = -1
        seen = set()
        for pack in self.packs:  # query before writing: a query may flush collected writes
            if pack.hash in self._elsewhere:
                self._require_there(pack)
            elif self._is_unknown(pack) and self._is_seen(pack):
                seen.add(pack.hash)
            yield 0.0
        for pack in packs:
            while self._is_window_full(pack):
                yield from self._confirm_all(packs)
            if pack.hash not in self.link.sent:
                self._send(pack, pack.hash in seen)
                yield 0.0
        while not self.are_confirmed:
            if self.is_hopeless():
                self._forget_unconfirmed(packs)
                break
            yield from self._confirm_all(packs)

    def _is_unknown(self, pack: Pack) -> bool:
        """Return whether this session does not know the state of an object at the destination.

        An object that was confirmed for an earlier checkpoint is checked again.
        """
        sent = self.link.sent.get(pack.hash)
        if sent is None:
            return True
        if sent.confirmed_at is not None:
            with contextlib.suppress(StorageError):  # recorded in `sent.problem`
                if not self.link.still_has(sent, reads=False):  # it may come back by itself
                    sent.written_at, sent.confirmed_at = self.link.clock(), None
        if sent.problem is None:
            return False
        del self.link.sent[pack.hash]
        return True

    def _require_there(self, pack: Pack) -> None:
        if not self._is_seen(pack):
            raise CheckpointError(
                "backup.foreign_object_missing", hash=pack.hash[:12], url=self.link.place.url
            )

    def is_hopeless(self) -> bool:
        """Return whether nothing has been confirmed for longer than any upload should take."""
        now = self.link.clock()
        if self.link.num_confirmed != self._num_confirmed:
            self._num_confirmed, self._news_at = self.link.num_confirmed, now
        if self.link.is_doubtful:
            return now - self._news_at > DOUBTFUL_SECONDS
        # if the destination confirms other objects, there is time to send a lost one again
        return now - self._news_at > self.patience * (2 if self.link.num_confirmed else 0.9)

    def size(self, path: Path) -> int | None:
        """Return the size of a file at the destination in bytes, or None if it does not exist."""
        try:
            return self.link.place.size(path)
        except FileNotFoundError:
            return None

    def write(self, sent: UploadedFile, buffers: Sequence[Buffer]) -> None:
        """Write a file to the destination.

        Raises:
            OSError: if the destination fails.
        """
        self.link.place.make_directory(sent.path.parent)
        try:
            self.link.place.write(sent.path, Paced(buffers, self._before_piece))
        finally:
            self._piece_bytes = 0
        sent.written_at = self.link.clock()
        self.link.num_done += 1

    def sent(self, path: Path, buffers: Sequence[Buffer]) -> UploadedFile:
        """Return a record, with hashes, for a file that is about to be written to the
        destination.
        """
        content = Content.of(buffers, self.link.place.hashes)
        return UploadedFile(path, content, self.link.clock())

    def _forget_unconfirmed(self, packs: Sequence[Pack]) -> None:
        """Forget the unconfirmed objects, so that the next checkpoint checks them again."""
        self.link.is_doubtful = True
        for pack in packs:
            if not self.link.is_confirmed(pack.hash):
                self.link.sent.pop(pack.hash, None)

    def _is_window_full(self, next_pack: Pack) -> bool:
        waiting = [
            sent.content.size_bytes
            for pack in self._own
            if (sent := self.link.sent.get(pack.hash)) and sent.confirmed_at is None
        ]
        is_full = bool(waiting) and sum(waiting) + next_pack.size_bytes > WINDOW_BYTES
        return is_full and not self.is_hopeless()

    def _confirm_all(self, packs: Sequence[Pack]) -> Iterator[float]:
        """Check all unconfirmed objects until one is confirmed or waiting is hopeless."""
        wait = FIRST_WAIT_SECONDS
        while True:
            news = False
            for pack in packs:
                if pack.hash in self.link.sent and not self.link.is_confirmed(pack.hash):
                    news |= self._confirm(pack)
                    yield 0.0
            if news or self.is_hopeless():
                return
            yield wait
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _confirm(self, pack: Pack) -> bool:
        """Return whether a sent object is confirmed now. If it was lost, send it again."""
        sent = self.link.sent[pack.hash]
        if self.link.confirms(sent):  # an error is recorded in `sent`: it is written again
            return True
        if sent.confirmed_at is not None:  # it disappeared: give it time to reappear
            sent.written_at, sent.confirmed_at = self.link.clock(), None
        if self.link.clock() - sent.written_at > self.patience:
            self._send_again(pack, self._forms(pack))
        return False

    def _is_seen(self, pack: Pack) -> bool:
        """Return whether the destination seems to have an object, or a manifest at the destination
        names it.
        """
        path = self.link.store.objects.path_of(pack.hash)
        forms = (path, path.with_name(path.name + SUFFIX))
        return pack.hash in self.link.named or any(self.size(form) is not None for form in forms)

    def _send(self, pack: Pack, is_seen: bool) -> None:
        """Write an object, unless the destination confirms it or seems to have it."""
        forms = self._forms(pack)
        sent, buffers = forms[-1]
        if is_seen:
            wrong = False
            for other, _ in reversed(forms):
                try:
                    if self.link.confirms(other):
                        self.link.sent[pack.hash] = other
                        return
                except StorageError:
                    wrong = True
            if pack.hash in self.link.named and not self.link.is_surely_wrong(sent.path):
                self.link.sent[pack.hash] = sent
                if wrong:
                    self._send_again(pack, forms)
                return
            if not wrong and self.size(sent.path) == sent.content.size_bytes:
                self.link.sent[pack.hash] = sent
                return
        self.write(sent, buffers)
        self.link.sent[pack.hash] = sent

    def _send_again(self, pack: Pack, forms: list[Form]) -> None:
        """Write a lost object again, without overwriting a file that may be in use.

        The object is written plain or compressed, whichever file does not exist at the destination.
        If both files exist, nothing is written.
        """
        now = self.link.sent[pack.hash]
        if len(forms) == 1 and pack.size_bytes <= LARGEST_BYTES:
            packed = compress(_joined(forms[0][1]))
            if len(packed) < pack.size_bytes:
                forms = [*forms, self._packed(pack, packed)]
        others = [
            form for form in forms if form[0].path != now.path and self.stays_missing(form[0].path)
        ]
        these = [form for form in forms if form[0].path == now.path]
        if pack.hash in self.link.named:
            these = [form for form in these if self.stays_missing(form[0].path)]
        for sent, buffers in [*these, *others]:
            self.write(sent, buffers)
            self.link.sent[pack.hash] = sent
            return
        now.written_at = self.link.clock()

    def stays_missing(self, path: Path) -> bool:
        """Return whether a file is missing in each of several consecutive checks."""
        return all(self.size(path) is None for _ in range(NUM_LOOKS))

    def _forms(self, pack: Pack) -> list[Form]:
        """Return an object in uncompressed and, if that is smaller, in compressed form.

        The last form in the list is preferred.

        Raises:
            CheckpointError: if its bytes do not match its hash.
        """
        file = self._files[pack.hash]
        plain: Sequence[Buffer] = file
        packed = None
        if isinstance(file, PackedObject):
            packed, plain = file.load()
        elif self.link.compresses and pack.size_bytes <= LARGEST_BYTES:
            packed = compress(_joined(file))
        forms: list[Form] = [(self._plain(pack, plain), plain)]
        if packed is not None and len(packed) < pack.size_bytes:
            forms.append(self._packed(pack, packed))
        return forms

    def _plain(self, pack: Pack, plain: Sequence[Buffer]) -> UploadedFile:
        """Return the record of an uncompressed object.

        The object's name is one hash. If the destination compares a different hash, it is computed
        from the bytes.

        Raises:
            CheckpointError: if its bytes had to be read and do not match its hash.
        """
        path = self.link.store.objects.path_of(pack.hash)
        if not isinstance(plain, OpenObject) or [*self.link.place.hashes] != [plain.hash_name]:
            return self.sent(path, plain)
        content = Content(pack.size_bytes, ((plain.hash_name, pack.hash),))
        return UploadedFile(path, content, self.link.clock())

    def _packed(self, pack: Pack, packed: bytes) -> Form:
        path = self.link.store.objects.path_of(pack.hash + SUFFIX)
        return self.sent(path, [packed]), [packed]

    def _before_piece(self, num_bytes: int) -> None:
        self.link.bandwidth.take(num_bytes)
        self._piece_bytes += num_bytes
        self._on_piece()


class Upload:
    """The upload of one checkpoint. All its files are opened first.

    Args:
        before_manifest: called when all objects are confirmed; if it raises, the upload ends.
        on_piece: called after each megabyte.

    Raises:
        CheckpointError: if the checkpoint is damaged on this machine, or was removed meanwhile.
    """

    def __init__(
        self,
        local: Store,
        name: str,
        link: RemoteSession,
        *,
        before_manifest: Callable[[], None],
        on_piece: Callable[[], None],
    ) -> None:
        self.name, self.link = name, link
        self.manifest: Manifest = local.read(name)
        self._before_manifest = before_manifest
        self._manifest_bytes = local.objects.read_small(local.manifest_path(name))
        self.is_confirmed = False
        self._files: dict[str, OpenFile] = {}
        elsewhere = set()
        try:
            for pack in self.manifest.packs:
                try:
                    self._files[pack.hash] = open_object(local, pack, self.manifest.hash_name)
                except CheckpointError:
                    if pack.hash not in self.manifest.copied_apart:
                        raise
                    elsewhere.add(pack.hash)
        except BaseException:
            self.close()
            raise
        self.objects = ObjectUpload(
            link, self.manifest.packs, self._files, elsewhere=elsewhere, on_piece=on_piece
        )

    @property
    def total_bytes(self) -> int:
        """The size of all objects of the checkpoint in bytes."""
        return self.objects.total_bytes

    @property
    def done_bytes(self) -> int:
        """The number of bytes that are already confirmed or are being sent."""
        return self.objects.done_bytes

    def close(self) -> None:
        """Close the files of the checkpoint."""
        for file in self._files.values():
            file.close()

    def steps(self) -> Iterator[float]:
        """Upload the objects and then the manifest. Yield the seconds to wait.

        If no object is confirmed for a long time, the manifest is written anyway, so that even a
        destination that never confirms has a copy. For such a checkpoint, `is_confirmed` is False.

        Raises:
            OSError, StorageError, CheckpointError: as in `ObjectUpload.steps`.
        """
        yield from self.objects.steps()
        self._before_manifest()
        yield from self._put_manifest()

    def _put_manifest(self) -> Iterator[float]:
        """Write the manifest and wait until it is confirmed."""
        sent = self._send_manifest()
        wait = FIRST_WAIT_SECONDS
        while not self._is_manifest_confirmed(sent) and not self.objects.is_hopeless():
            yield wait
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            sent = self._send_manifest()
        self.is_confirmed = sent.confirmed_at is not None and self.objects.are_confirmed
        self.link.is_doubtful = sent.confirmed_at is None

    def _is_manifest_confirmed(self, sent: UploadedFile) -> bool:
        try:
            return self.link.confirms(sent)
        except StorageError:
            del self.link.sent[self.name]  # it is written again
            raise

    def _send_manifest(self) -> UploadedFile:
        """Write the manifest, also after it was lost. If it may be in use, only check it."""
        self.link.place.require_identity()
        path = self.link.store.manifest_path(self.name)
        sent = self.link.sent.get(self.name) or self.objects.sent(path, [self._manifest_bytes])
        is_wrong = self.link.is_surely_wrong(path)
        is_late = self.link.clock() - sent.written_at > self.objects.patience
        if self.name in self.link.named and not is_wrong:
            is_lost = is_late or self.link.num_wrong[path] > 0
            is_needed = is_lost and self.objects.stays_missing(path)
        elif is_wrong:
            is_needed = True
        elif self.name in self.link.sent:
            is_needed = is_late
        else:
            is_needed = self.objects.size(path) != sent.content.size_bytes
        if is_needed:
            self.objects.write(sent, [self._manifest_bytes])
        self.link.sent[self.name] = sent
        return sent


def _joined(buffers: Sequence[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def fetch_version(
    remote: Store, name: str, local: Store, on_progress: Progress, *, run_files: bool = True
) -> None:
    """Write a checkpoint of `remote` into `local` under the same name, the manifest last.

    Everything is verified and on the disk when this returns. Objects that are intact in `local` are
    not fetched again. The caller must be the only writer of `local`.

    Args:
        run_files: False skips a damaged object that contains only copies of run files.

    Raises:
        CheckpointError: if the checkpoint is damaged in `remote`, or cannot be read.
        StorageError: if the local disk fails.
    """
    manifest = remote.read(name)
    data = remote.objects.read_small(remote.manifest_path(name))
    try:
        fetch_objects(remote, manifest, local, on_progress, run_files=run_files)
        digest = name.rpartition("-")[2]
        local.objects.put(local.manifest_path(name), [data], digest, manifest.hash_name)
    except OSError as error:
        raise StorageError(
            "backup.fetched_checkpoint_not_written", root=local.root, name=name[:12], error=error
        ) from error


def fetch_objects(
    remote: Store,
    manifest: Manifest,
    local: Store,
    on_progress: Progress = do_nothing,
    *,
    run_files: bool = True,
) -> None:
    """Fetch the objects of a checkpoint that are not intact in `local`.

    Raises:
        CheckpointError: if an object is damaged in `remote`, too.
        StorageError, OSError: if the local disk fails.
    """
    local.prepare()
    missing = [p for p in manifest.packs if not local.objects.is_whole(p, manifest.hash_name)]
    local.objects.require_space(sum(pack.size_bytes for pack in missing))
    total_bytes, done_bytes = sum(pack.size_bytes for pack in manifest.packs), 0
    for pack in manifest.packs:
        if pack in missing:
            try:
                bytes_of_pack = remote.objects.read(pack, manifest.hash_name)
                local.objects.write_pack([bytes_of_pack], manifest.hash_name)
            except CheckpointError:
                if run_files or pack in manifest.needed_packs:
                    raise
        done_bytes += pack.size_bytes
        on_progress(done_bytes, total_bytes)
