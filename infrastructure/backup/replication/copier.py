"""The copier, which copies new checkpoints from a local store to a backup destination.

It copies one checkpoint at a time, the newest first. Finished folders, such as the trained model,
are copied after the checkpoints.

If a newer checkpoint appears before the copy of an older one has begun, the older one is never
copied. A copy that has begun is always finished, because otherwise a run that saves often would
never have a backup. The copier does not give up, and it cannot harm the training, because it reads
only committed checkpoints.
"""

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from infrastructure.backup.backends.contract import BackendError
from infrastructure.backup.backends.place_identity import PlaceRecord
from infrastructure.backup.format.lineage import Lineage
from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.claims import Claims
from infrastructure.backup.replication.folder_upload import Publication, PublishedFolder
from infrastructure.backup.replication.remote_pruning import GRACE_SECONDS, PlacePruning
from infrastructure.backup.replication.remote_session import (
    RemoteSession,
    Seen,
    UploadedFile,
    seen_of,
)
from infrastructure.backup.replication.second_looks import SecondLooks
from infrastructure.backup.replication.status import FENCED, RETRYING, BackupStatus
from infrastructure.backup.replication.upload import Upload
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact, redact_urls

IDLE_SECONDS = 1.0  # between two checks of the local store
NUM_FIRST_LOOKS, FIRST_LOOK_SECONDS = 4, 0.05
AT_THE_END = "end"  # token of the copier's own last check
LOOK_SECONDS = 60.0  # between two checks for versions of another run
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 300.0


class FencedError(Exception):
    """An error for a checkpoint that another run wrote under this run's name. The text is the name
    of the checkpoint.
    """


class Copier:
    """The copier of the checkpoints in `local` to a backup destination. Call `tick` repeatedly.

    Args:
        retention: the rules for the checkpoints to keep at the destination. Only confirmed
            checkpoints count.
        record: the record of the destination that this run was copied to; updated at first contact.
        on_piece: called after each megabyte sent, to show progress.
        on_fault: called with an error that a backend was not allowed to raise.
        grace_seconds: the time for which no manifest must have named an object before it is removed
            from the destination.
        now: returns the seconds since 1970, for the status. Everything else uses `link.clock`.
        draw: returns a number from 0 to 1 that spreads the retries of many copiers.
    """

    def __init__(
        self,
        local: Store,
        link: RemoteSession,
        retention: Retention,
        *,
        record: PlaceRecord | None = None,
        on_piece: Callable[[], None] = do_nothing,
        on_fault: Callable[[Exception], None] = do_nothing,
        grace_seconds: float = GRACE_SECONDS,
        now: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.local, self.link = local, link
        self.claims = Claims(link)
        self.pruning = PlacePruning(link, retention, grace_seconds)
        self._record = record
        self._publications: dict[str, PublishedFolder | Publication] = {}  # not done yet
        self._published: dict[str, PublishedFolder] = {}
        self._refused_folders: dict[str, str] = {}
        self._publishing: PublishedFolder | None = None
        self._on_piece, self._on_fault, self._now, self._draw = on_piece, on_fault, now, draw
        self._lineage: Lineage | None = None  # None: the destination was not read yet
        self._late: set[str] = set()  # older than the first contact, but seen later
        self._local_names: list[str] = []
        self._local_error: str | None = None
        self._local_manifests: dict[str, Manifest] = {}
        self._refused: dict[str, str] = {}
        self._sent: set[str] = set()
        self._newest_sent = ""  # of the healthy versions
        self._upload: Upload | None = None
        self._confirmed_at: dict[str, float] = {}  # by version, in the time of `now`
        self._looks = SecondLooks(link)
        self._last_look: str | None = None  # token of the requested check that is not done yet
        self._done_look = ""
        self._offset = float("-inf")
        self._is_looked_at = False  # completely checked since the last version was copied
        self._stranger: str | None = None
        self._error: tuple[str, str | None] | None = None
        self._num_failures = self._done_at_failure = 0
        self._looked_at = self._pruned_at = float("-inf")
        self._work = self._round()
        self._not_before = float("-inf")
        self._phase = "starting"

    def tick(self) -> float:
        """Do one small unit of work. Return the seconds to wait before the next one."""
        if self._stranger is not None:
            return LOOK_SECONDS
        if (early := self._not_before - self.link.clock()) > 0:
            return early
        wait = LOOK_SECONDS
        try:
            wait = next(self._work)
        except StopIteration:
            self._error, self._num_failures = None, 0
            is_waited_for = self._pending() or self._last_look is not None
            wait = 0.0 if is_waited_for else IDLE_SECONDS
            self._begin_again(wait)
        except FencedError as stranger:
            self._stranger = str(stranger)
            self.close()
        except CheckpointError as error:
            wait = self._pass_over(error)
        except (OSError, StorageError) as error:
            wait = self._fail(error)
        self._not_before = self.link.clock() + wait
        return wait

    def nudge(self) -> None:
        """Do the next unit of work without delay, unless a retry after an error is pending."""
        if not self._num_failures:
            self._not_before = float("-inf")

    @property
    def is_done(self) -> bool:
        """True if there is nothing left to copy, or if another run's checkpoints stop the
        copier.
        """
        self._look_here()
        return self._stranger is not None or (
            self._lineage is not None
            and self._upload is None
            and not self._pending()
            and not self._publications
        )

    @property
    def has_failed(self) -> bool:
        """True if the last attempt failed and a retry is pending."""
        return self._num_failures > 0

    def publish(self, what: Publication) -> None:
        """Copy a finished folder after all checkpoints. `status` reports when it is confirmed.

        The request replaces an earlier one for the same name that is not done yet.
        """
        for token, other in list(self._publications.items()):
            if what_of(other).name == what.name:
                del self._publications[token]
        for token, folder in list(self._published.items()):
            if folder.what.name == what.name and what.replaces:
                del self._published[token]
        self._publications[what.token] = what
        self.nudge()

    def look_again(self, token: str) -> None:
        """When nothing is left to copy, check every file of the newest checkpoint.

        Files that are missing at the destination are copied again. `status` contains the token of
        the last completed check.
        """
        self._last_look = token
        self.nudge()

    def look_at_the_end(self) -> None:
        """Call `look_again`, unless all files have been checked since the last checkpoint was
        copied.
        """
        if not self._is_looked_at:
            self.look_again(AT_THE_END)

    @property
    def has_looked(self) -> bool:
        """True if every requested check is done, or if another run's checkpoints stop the
        copier.
        """
        return self._last_look is None or self._stranger is not None

    def _holding(self) -> dict[str, Seen]:
        """Return the confirmed checkpoints whose files were all intact at the last check."""
        known = {
            name: seen_of(self.link.files_of(name, manifest))
            for name, manifest in self.pruning.confirmed.items()
        }
        return {name: seen for name, seen in known.items() if seen is not None}

    def _newest_holding(self, holding: Collection[str]) -> str | None:
        confirmed = self.pruning.confirmed
        return max((name for name in holding if confirmed[name].healthy), default=None)

    def _files(self, *names: str | None) -> list[UploadedFile]:
        """Return the remote files of the checkpoints `names`, each file once."""
        files = (
            file
            for name in names
            if name is not None
            for file in self.link.files_of(name, self.pruning.confirmed[name])
        )
        return [*{file.path: file for file in files if file is not None}.values()]

    def status(self) -> BackupStatus:
        """Return the status of the backup."""
        holding = self._holding()
        name = self._newest_holding(holding)
        manifest = self.pruning.confirmed[name] if name else None
        confirmed_at = self._confirmed_at.get(name or "")
        seen, offset = holding[name] if name else None, self._clock_offset()
        newest = next((n for n, m in self._local_manifests.items() if m.healthy), None)
        upload, folder = self._upload, self._publishing
        on_its_way = upload or folder
        refused = self._refused_name(name or "")
        error, advice = self._error or (self._damage(refused) or self._loss(holding), None)
        if self._stranger is not None:
            error = phrase("backup.destination_written_by_another", name=self._stranger[:12])
            advice = phrase("backup.resolve_fenced_destination")
        return BackupStatus(
            place=redact_urls(self.link.place.url),
            state=self._state(),
            confirmed_name=name,
            confirmed_step=manifest.step if manifest else None,
            saved_at=manifest.created_at(confirmed_at) if manifest else None,
            confirmed_at=confirmed_at,
            present_at=seen.present_at + offset if seen else None,
            compared_at=seen.compared_at + offset if seen else None,
            compared_by=seen.evidence.value if seen else None,
            last_look=self._done_look,
            in_flight_step=upload.manifest.step if upload else None,
            in_flight_folder=folder.what.name if folder else None,
            done_bytes=on_its_way.done_bytes if on_its_way else 0,
            total_bytes=on_its_way.total_bytes if on_its_way else 0,
            published_folders={
                token: f"{self.link.place.url}/{folder.target}"
                for token, folder in self._published.items()
                if seen_of(folder.seen.values()) is not None
            },
            newest_name=newest,
            newest_step=self._local_manifests[newest].step if newest else None,
            refused_name=refused,
            error=error,
            num_failures=self._num_failures,
            advice=advice,
            changed_at=self._now(),
        )

    def _clock_offset(self) -> float:
        """Return the seconds to add to a time of `link.clock` to get a time since 1970.

        The result changes only if the system's clock is set, so that an unchanged status compares
        as equal.
        """
        offset = self._now() - self.link.clock()
        if abs(offset - self._offset) > 1.0:
            self._offset = offset
        return self._offset

    def _state(self) -> str:
        if self._stranger is not None:
            return FENCED
        if self._num_failures:
            return RETRYING
        return "doubtful" if self.link.is_doubtful else self._phase

    def _round(self) -> Iterator[float]:
        """Check the store and the destination, then copy and confirm one checkpoint, if there is
        one to copy.
        """
        if self._lineage is None:
            yield from self._begin()
        self._look_here()
        if self.link.clock() - self._looked_at >= LOOK_SECONDS:
            self._look_there()
        elif not self.link.place.is_slow:
            self.link.place.require_identity()  # report a lost connection at once
        self._look_once_more()
        yield from self._prune()
        if self._upload is None:
            self._take_newest()
        if self._upload is None:
            yield from self._publish()
            yield from self._look_at_the_end()
            self._phase = "idle"
            return
        self._phase = "copying"
        for wait in self._upload.steps():
            self._worked()
            self._look_once_more()
            self._phase = "confirming" if wait else "copying"
            yield wait
        self._arrived(self._upload)

    def _look_once_more(self) -> None:
        """Check the file at the destination whose next check is due, if any."""
        self._looks.one([*self._files(*self.pruning.confirmed), *self._published_files()])
        self._publish_lost()

    def _publish_lost(self) -> None:
        """Request another copy of each folder that has lost a file at the destination."""
        for token, folder in self._published.items():
            if token not in self._publications and seen_of(folder.seen.values()) is None:
                self._publications[token] = folder

    def _published_files(self) -> list[UploadedFile]:
        return [file for folder in self._published.values() for file in folder.seen.values()]

    def _look_at_the_end(self) -> Iterator[float]:
        """Do the requested check, unless something must be copied first."""
        token = self._last_look
        if token is None or self._pending() or self._publications:
            return
        self.link.place.require_identity()
        healthy = [name for name, manifest in self.pruning.confirmed.items() if manifest.healthy]
        files = [*self._files(max(healthy, default=None)), *self._published_files()]
        yield from self._looks.last(files)
        self._publish_lost()
        if not (self._pending() or self._publications) and token == self._last_look:
            self._done_look, self._last_look, self._is_looked_at = token, None, True

    def _begin(self) -> Iterator[float]:
        """Identify the destination, and list the objects there, which are never overwritten."""
        self._identify()
        self.link.place.sweep(Path(self.link.run_id))
        listed = set()
        for _ in range(NUM_FIRST_LOOKS):  # a listing may be incomplete
            listed |= {*self.link.store.versions()}
            yield FIRST_LOOK_SECONDS
        unread = sorted(listed)
        for _ in range(NUM_FIRST_LOOKS):
            unread = [name for name in unread if not self._take_in(name)]
            yield FIRST_LOOK_SECONDS if unread else 0.0
        self._look_here()
        self.link.named |= listed
        lineage = Lineage(self.local.root)
        parents = (manifest.parent for manifest in self._local_manifests.values())
        lineage.begin(self._local_names, [name for name in parents if name is not None])
        self._lineage = lineage
        self._refuse_strangers(listed)
        if (holder := self.claims.holder()) is not None:
            self._refuse_strangers([holder])
        self._looked_at = self.link.clock()

    def _identify(self) -> None:
        place = self.link.place
        known = None if self._record is None else self._record.id_of(place.url)
        identity = place.identify(known)
        if self._record is not None:
            with contextlib.suppress(OSError):  # the local disk fails; the next copier writes it
                self._record.write(place.url, identity)

    def _publish(self) -> Iterator[float]:
        """Copy the requested folders, unless a checkpoint is waiting to be copied."""
        for token, what in list(self._publications.items()):
            try:
                self._publishing = folder = self._opened(token, what)
                self._phase = "copying"
                for wait in folder.steps():
                    self._phase = "confirming" if wait else "copying"
                    yield wait
                    self._look_here()
                    if self._pending():
                        return
            except (CheckpointError, ValueError) as error:  # it was removed or changed
                folder_name = what_of(what).name
                self._refused_folders[token] = phrase(
                    "backup.folder_not_copied", folder=folder_name, error=error
                )
                self._published.pop(token, None)
            else:
                self._published[token] = folder
            finally:
                self._publishing = None
            self._publications.pop(token, None)

    def _opened(self, token: str, what: PublishedFolder | Publication) -> PublishedFolder:
        """Return the folder that is to be published, opened for copying.

        A retry reuses the hashes computed before, unless `replaces` is set.
        """
        if isinstance(what, PublishedFolder) and not what.what.replaces:
            return what
        parent = Path(self.link.run_id)
        link, publication = self.link, what_of(what)
        try:
            folder = PublishedFolder(link.place, parent, publication, link.bandwidth, link.clock)
        except OSError as error:
            raise CheckpointError(str(error)) from error
        if token in self._publications:
            self._publications[token] = folder
        return folder

    def _take_in(self, name: str) -> bool:
        """Record the objects that a remote checkpoint names. Return False if its manifest is
        unreadable.
        """
        try:
            self.link.named |= {pack.hash for pack in self.link.store.read(name).packs}
        except CheckpointError:
            return False
        return True

    def _look_here(self) -> None:
        """Read the list of checkpoints in the local store, and the manifests of new ones."""
        try:
            self._local_names, self._local_error = self.local.versions(), None
        except OSError as error:
            self._local_error = phrase("backup.file_unreadable", path=self.local.root, error=error)
            return
        known, self._local_manifests = self._local_manifests, {}
        for name in self._local_names:
            if name in known:
                self._local_manifests[name] = known[name]
            elif name not in self._refused:
                self._read_here(name)

    def _read_here(self, name: str) -> None:
        try:
            self._local_manifests[name] = self.local.read(name)
        except CheckpointError as error:
            self._note_damage(name, error)

    def _note_damage(self, name: str, error: CheckpointError) -> None:
        """Record that a local checkpoint is damaged and is not copied, unless it was removed."""
        with contextlib.suppress(OSError):  # the next check decides
            if name in self.local.versions():
                self._refused[name] = str(error)

    def _damage(self, name: str | None) -> str | None:
        """Return a message on a local problem with the store, a folder or the checkpoint `name`, or
        None.

        A message about a checkpoint remains until a newer checkpoint is confirmed.
        """
        if self._local_error is not None:
            return self._local_error
        if self._refused_folders:
            return next(iter(self._refused_folders.values()))
        return name and phrase(
            "backup.damaged_checkpoint_not_copied", name=name[:12], reason=self._refused[name]
        )

    def _loss(self, holding: Collection[str]) -> str | None:
        """Return a message if the newest confirmed checkpoint has lost a file since then; otherwise
        None.
        """
        for name in sorted(self.pruning.confirmed.keys() - {*holding}, reverse=True):
            files = self.link.files_of(name, self.pruning.confirmed[name])
            problems = [file.problem for file in files if file is not None and file.problem]
            why = (
                redact(problems[0]) if problems else phrase("backup.one_file_missing_or_different")
            )
            here = phrase("backup.is_copied_again")
            if name not in self._local_manifests:
                here = phrase("backup.cannot_be_copied_again")
            return phrase(
                "backup.confirmed_checkpoint_damaged", name=name[:12], reason=why, consequence=here
            )
        return None

    def _refused_name(self, confirmed: str) -> str | None:
        return max((name for name in self._refused if name > confirmed), default=None)

    def _look_there(self) -> list[str]:
        """Return the checkpoints that exist at the destination.

        Raises:
            FencedError: if one of these checkpoints belongs to another run.
        """
        self.link.place.require_identity()
        listed = self.link.store.versions()
        self._refuse_strangers(listed)
        self._looked_at = self.link.clock()
        return listed

    def _refuse_strangers(self, listed: Collection[str]) -> None:
        """Raise an error, which stops the copier for good, if another run writes under this run's
        name.

        Raises:
            FencedError: if a checkpoint belongs to another run.
        """
        assert self._lineage is not None
        for name in self._lineage.strangers(listed, self._local_names):
            raise FencedError(name)
        # an earlier listing was incomplete; these are not another run's new versions
        self._late |= {*listed} - self._lineage.known - {*self._local_names}

    def _pending(self) -> list[str]:
        """Return the checkpoints that still have to be copied, in order."""
        confirmed = self.pruning.confirmed.keys()
        again = ({self._newest_sent} | confirmed) - self._holding().keys()
        over = self._refused.keys() | confirmed | self._sent
        names = [
            n
            for n in self._local_manifests
            if (n in again and n not in self._refused) or (n >= self._newest_sent and n not in over)
        ]
        known = self._local_manifests
        return sorted(names, key=lambda n: (n not in self._sent, known[n].healthy, n), reverse=True)

    def _take_newest(self) -> None:
        for name in self._pending():
            try:
                self._upload = Upload(
                    self.local,
                    name,
                    self.link,
                    before_manifest=self._before_manifest,
                    on_piece=self._on_piece,
                )
                return
            except CheckpointError as error:
                self._note_damage(name, error)

    def _before_manifest(self) -> None:
        self._look_there()
        assert self._lineage is not None
        assert self._upload is not None
        self._lineage.add([self._upload.name])
        self.claims.take(self._upload.name, lambda holder: self._refuse_strangers([holder]))

    def _arrived(self, upload: Upload) -> None:
        self.close()
        self._look_there()  # detects a run that wrote at the same instant
        self._sent.add(upload.name)
        if upload.manifest.healthy:
            self._newest_sent = max(self._newest_sent, upload.name)
        self.link.named |= {pack.hash for pack in upload.manifest.packs}
        if not upload.is_confirmed:
            return
        self.link.named.add(upload.name)
        self.pruning.confirmed[upload.name] = upload.manifest
        self._confirmed_at[upload.name] = self._now()
        self._is_looked_at = False
        self._pruned_at = float("-inf")

    def close(self) -> None:
        """Close the files of the checkpoint that is being copied."""
        if self._upload is not None:
            self._upload.close()
        self._upload, self._phase = None, "idle"

    def _prune(self) -> Iterator[float]:
        """Remove old checkpoints and objects at the destination, if there may be any."""
        now = self.link.clock()
        is_new = self._pruned_at == float("-inf") and self.pruning.confirmed
        if not is_new and (now - self._pruned_at < LOOK_SECONDS or not self.pruning.is_due()):
            return
        self._pruned_at = now  # if the destination refuses to remove, copying continues meanwhile
        listed = self._look_there()
        on_its_way = [p.hash for p in self._upload.manifest.packs] if self._upload else []
        self.pruning.doubted = self.pruning.confirmed.keys() - self._holding().keys()
        yield from self.pruning.steps(listed, on_its_way, self._late)

    def _worked(self) -> None:
        """Clear the last error if a file was written or confirmed after the error."""
        if self.link.num_done > self._done_at_failure:
            self._num_failures, self._error = 0, None

    def _fail(self, error: OSError | StorageError) -> float:
        """Record an error, and return the seconds to wait before the next attempt."""
        self._num_failures += 1
        self._done_at_failure = self.link.num_done
        if isinstance(error, BackendError):
            self._on_fault(error)
        rewritten = phrase("backup.is_written_again")
        advice = self.link.place.advice(error) if isinstance(error, OSError) else rewritten
        self._error = (redact(str(error)), redact(advice))
        longest = min(
            LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(self._num_failures, 20)
        )
        wait = longest * (0.5 + 0.5 * self._draw())
        self._begin_again(wait)
        return wait

    def _pass_over(self, error: CheckpointError) -> float:
        """Skip a damaged local checkpoint.

        Return the seconds to wait before the next unit of work.
        """
        assert self._upload is not None, "nothing else reads objects of this machine"
        self._note_damage(self._upload.name, error)
        self.close()
        self._begin_again(IDLE_SECONDS)
        return IDLE_SECONDS

    def _begin_again(self, wait: float) -> None:
        self._work = self._round()
        self._not_before = self.link.clock() + wait


def what_of(publication: PublishedFolder | Publication) -> Publication:
    """Return the request that led to a published folder. If given a request, return it
    unchanged.
    """
    return publication.what if isinstance(publication, PublishedFolder) else publication
