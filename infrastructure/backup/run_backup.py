"""The backup of one run: its checkpoints in a local store, and copies at a backup destination.

A checkpoint is committed when it is safe on this machine's disk, and confirmed when it is safe from
the loss of this machine. A copier in a separate process turns committed checkpoints into confirmed
ones. This module does not import torch.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from infrastructure.backup.backends import open_place, require_backend
from infrastructure.backup.backends.base import Evidence, Place
from infrastructure.backup.format.lineage import Lineage
from infrastructure.backup.format.retention import Retention, versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.backup.inventory import (
    HERE,
    BackupEntry,
    VerifiedVersion,
    list_entries,
    verify_all,
)
from infrastructure.backup.repair.run_files_repair import RunFileRepair
from infrastructure.backup.repair.run_repair import Repair, StoreRepair
from infrastructure.backup.replication.apart import ApartSettings
from infrastructure.backup.replication.claims import Claims
from infrastructure.backup.replication.copier_client import CopierClient
from infrastructure.backup.replication.copier_process import CopierSettings
from infrastructure.backup.replication.download import fetch_newest
from infrastructure.backup.replication.folder_upload import Publication, paths_in
from infrastructure.backup.replication.object_reader import Progress
from infrastructure.backup.replication.remote_pruning import prune_once
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.replication.status import (
    DOWN,
    FENCED,
    FINISHED,
    LEFT,
    OFF,
    STARTING,
    BackupStatus,
    live_status,
    read_status,
    write_status,
)
from infrastructure.backup.writer.writer_process import only_writer
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact, redact_urls
from infrastructure.core.waiting import within

STATUS_FILE = "backup.json"
POLL_SECONDS = 0.1
CONTACT_SECONDS = 60.0  # how long the destination may take to respond before a run starts

ENDS_SECONDS = 10.0  # a copier with nothing left to copy ends at once, but it is niced


class RunBackup:
    """The backups of one run.

    Args:
        directory: the local store; for a run, the `checkpoints` folder in its directory.
        options: section `backup` of the configuration.
        run_id: the folder at the destination, `<place>/<run id>`; by default, the name of
            `directory`.
        status_path: the file to which the copier writes its status; by default, a file in the
            store.
        traceback_path: the file for the traceback of an unexpected error in the copier; None
            discards it.
        retention: the rules for the checkpoints to keep on this machine.

    Raises:
        ValueError: if the destination is invalid.
    """

    def __init__(
        self,
        directory: Path,
        options: BackupConfig | None = None,
        *,
        run_id: str | None = None,
        status_path: Path | None = None,
        traceback_path: Path | None = None,
        retention: Retention | None = None,
    ) -> None:
        self.store = Store(directory)
        self.options = options or BackupConfig()
        self.run_id = run_id or directory.resolve().name
        self.status_path = status_path or directory / STATUS_FILE
        self.traceback_path = traceback_path
        self.retention = retention or Retention(keep_best=1)
        self.place_id: str | None = None  # found by `check_place`
        self.is_missing = False  # at the start, with `allow_missing_place`
        self.is_new = False  # nothing was copied to the destination before `check_place`
        self._link: RemoteSession | None = None
        self._copier: CopierClient | None = None
        if self.options.place is not None:
            require_backend(self.options.place)  # the copier process opens it, too
            settings = self._settings(self.options.place)
            self._link = settings.link()  # does not connect yet
            self._copier = CopierClient(settings)
            self.record = settings.record

    def _settings(self, place: str) -> CopierSettings:
        megabytes = self.options.megabytes_per_second
        return CopierSettings(
            store=str(self.store.root.resolve()),
            place=place,
            run_id=self.run_id,
            status=str(self.status_path.resolve()),
            keep=self.options.keep,
            compression=self.options.compression,
            bytes_per_second=None if megabytes is None else megabytes * 1e6,
            finish_seconds=self.options.finish_seconds,
            traceback=None if self.traceback_path is None else str(self.traceback_path.resolve()),
        )

    def apart(self) -> ApartSettings | None:
        """Return the settings with which other machines of the run copy to the destination.

        Returns:
            The settings, or None if there is no destination or its identity is not known yet.
        """
        if self._link is None:
            return None
        identity = self.record.id_of(self._link.place.url) or self.place_id
        if identity is None:
            return None
        settings = self._settings(str(self.options.place))
        return ApartSettings(settings, identity, self.store.hash_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restore_run(self, step: int | None = None, on_progress: Progress | None = None) -> Path:
        """Fetch and verify the newest healthy checkpoint at the destination, or the checkpoint of
        `step`.

        Damaged newer checkpoints are skipped with a warning. Objects that are intact on this
        machine are not fetched again.

        Returns:
            The path of the checkpoint's manifest in the local store.

        Raises:
            CheckpointError: if there is no such checkpoint.
            StorageError: if the destination does not respond, or the local disk fails.
        """
        link = self._require_link()
        with only_writer(self.store.root):
            name = fetch_newest(link, self.store, step, on_progress or do_nothing)
            self._adopt(link)
        if step is None:
            self._note_fetched(name, redact_urls(link.place.url))
        return self.store.manifest_path(name)

    def _adopt(self, link: RemoteSession) -> None:
        """Record the checkpoints at the destination as the history of this store.

        Raises:
            StorageError: if the destination does not respond, or the local disk fails.
        """
        try:
            claimed = Claims(link).holder()  # its manifest may be missing if its copier died
            names = [*link.store.versions(), *([claimed] if claimed else [])]
            Lineage(self.store.root).restored(names)
        except OSError as error:
            raise self._unreachable(error) from error

    def _note_fetched(self, name: str, place: str) -> None:
        """Record in the backup status that the fetched checkpoint is confirmed at `place`. Do
        nothing if the status already describes this destination.
        """
        if read_status(self.status_path).place == place:
            return
        manifest, now = self.store.read(name), time.time()
        status = BackupStatus(
            place=place,
            state=FINISHED,
            confirmed_name=name,
            confirmed_step=manifest.step,
            saved_at=manifest.created_at(now),
            confirmed_at=now,
            present_at=now,
            compared_at=now,
            compared_by=Evidence.READ_BACK.value,
            newest_name=name,
            newest_step=manifest.step,
            changed_at=now,
        )
        with suppress(OSError):  # the status is only shown to the user
            write_status(self.status_path, status)

    def repair(self, directory: Path | None = None) -> list[Repair]:
        """Restore damaged or missing files from the destination and from the copies in checkpoints.

        Call this before a run resumes.

        Args:
            directory: the run directory, whose small files are also checked.

        Returns:
            A `Repair` for each damaged or missing file; empty if there was none.

        Raises:
            StorageError: if the local disk fails.
        """
        status = read_status(self.status_path)
        is_ours = self._link is not None and status.place == redact_urls(self._link.place.url)
        confirmed = status.confirmed_name if is_ours else None
        if not self.store.versions() and confirmed is None:
            return []
        remote = None if self._link is None else self._link.store
        where = "" if self._link is None else self._link.place.url
        with only_writer(self.store.root):
            try:
                self.store.sweep()
            except OSError as error:
                raise StorageError(
                    "backup.sweep_failed", root=self.store.root, error=error
                ) from error
            repairs = [*StoreRepair(self.store, remote, where).steps(confirmed)]
        if directory is not None:
            stores = [self.store] if remote is None else [self.store, remote]
            try:
                repairs += RunFileRepair(directory, stores).steps()
            except OSError as error:
                raise StorageError(
                    "backup.run_files_repair_failed", directory=directory, error=error
                ) from error
        return repairs

    def list_backups(self) -> list[BackupEntry]:
        """List all checkpoints on this machine and at the destination, the newest first.

        Raises:
            StorageError: if the destination does not respond.
        """
        try:
            return list_entries(self._stores())
        except OSError as error:
            raise self._unreachable(error) from error

    def verify(self) -> list[VerifiedVersion]:
        """Verify every checkpoint on this machine and at the destination by its hashes.

        A destination that does not respond is reported in the result, like damage.
        """
        return [
            finding for where, store in self._stores().items() for finding in self._of(where, store)
        ]

    def _of(self, where: str, store: Store) -> Iterator[VerifiedVersion]:
        try:
            yield from verify_all(where, store)
        except OSError as error:
            yield VerifiedVersion(where, None, None, str(self._unreachable(error)))

    def status(self) -> BackupStatus:
        """Return the status of the copies. Restart the copier if it died."""
        if self._copier is None or self._link is None:
            return BackupStatus(state=OFF)
        if self._copier.is_started:
            self._copier.start()
        place = redact_urls(self._link.place.url)
        is_ours = self._copier.process_id is not None
        status = read_status(self.status_path) if is_ours else live_status(self.status_path)
        if status.place != place:
            status = BackupStatus()  # of an earlier destination
        if status.state == FINISHED and not is_ours:
            status = self._with_newer(status)
        if self._copier.cannot_run:
            return self._copier_down(self._copier, replace(status, place=place))
        if self._copier.process_id is not None and status.state == DOWN:
            return replace(status, state=STARTING)  # what stopped the previous ones may be gone
        if self._copier.failure is not None and status.error is None:
            return replace(
                status, error=phrase("backup.copier_failed", reason=self._copier.failure)
            )
        return status

    def _with_newer(self, status: BackupStatus) -> BackupStatus:
        """Return the status of a copier that has ended, updated if this machine has a newer
        checkpoint.

        A run that continued without a copier may have written a newer checkpoint.
        """
        newest = self.store.newest_healthy()
        if newest is None or newest == status.newest_name:
            return status
        step = self.store.outline(newest).step
        return replace(status, state=LEFT, newest_name=newest, newest_step=step)

    def _copier_down(self, copier: CopierClient, known: BackupStatus) -> BackupStatus:
        """Write and return a status saying that nothing is being copied."""
        status = replace(
            known,
            state=DOWN,
            error=phrase("backup.copier_cannot_run", reason=copier.failure),
            advice=phrase("backup.unconfirmed_only_here"),
            num_failures=copier.num_failures,
            in_flight_step=None,
            newest_name=self.store.newest_healthy(),
        )
        if status.newest_name is not None and status.newest_name != known.newest_name:
            status = replace(status, newest_step=self.store.outline(status.newest_name).step)
        if status != known:
            status = replace(status, changed_at=time.time())
            with suppress(OSError):  # the next call tries again
                write_status(self.status_path, status)
        return status

    @property
    def num_copier_failures(self) -> int:
        """The number of consecutive times that the copier could not be started or ended soon after
        its start.
        """
        return 0 if self._copier is None else self._copier.num_failures

    def look_after(self) -> None:
        """Restart the copier if it died, and report it if it cannot run. Call this often."""
        if self._copier is not None and self._copier.is_started:
            self._copier.start()
            if self._copier.cannot_run:
                self.status()

    def prune(self) -> list[str]:
        """Remove old checkpoints on this machine and at the destination.

        A checkpoint at the destination is removed only if `keep` newer checkpoints could be read
        back. An unused object at the destination is removed only by a second call at least an hour
        later.

        Returns:
            Messages on what was removed.

        Raises:
            StorageError: if the disk or the destination fails. Nothing that is kept is touched.
        """
        with only_writer(self.store.root):
            removed = self.store.remove_all_but(versions_to_keep(self.store, self.retention))
        sentences = [phrase("backup.checkpoints_removed_here", count=len(removed))]
        if self._link is None:
            return sentences
        record = self.status_path.with_name("backup-unnamed.json")
        try:
            settings = self._settings(str(self.options.place))
            return [*sentences, *prune_once(self._link, settings.retention, record)]
        except OSError as error:
            raise self._unreachable(error) from error

    def check_place(self) -> str | None:
        """Check that the destination is writable, and is the same one to which the run was copied
        before.

        Call this before the first step.

        Returns:
            None if the destination can be used; otherwise a message on the problem, if
            `allow_missing_place` lets the run start anyway.

        Raises:
            StorageError: if the destination cannot be used. The message says what to do.
        """
        if self._link is None:
            return None
        place = self._link.place
        try:
            within(CONTACT_SECONDS, self._contact)
            self.is_missing = False
            return None
        except (OSError, StorageError) as error:  # includes TimeoutError
            message = _cannot_be_used(place, error)
        if self.options.allow_missing_place:
            self.is_missing = True
            return message
        raise StorageError(f"{message}{phrase('backup.or_allow_missing_destination')}")

    def _contact(self) -> None:
        link = self._require_link()
        self.place_id = link.place.identify(self.record.id_of(link.place.url))
        self.is_new = link.place.is_new
        link.place.probe()

    def remember_place(self, place_id: str | None) -> None:
        """Record the id of the destination to which this run is copied, or None if it is unknown.

        Raises:
            OSError: if the local disk fails.
        """
        if self._link is not None and place_id is not None:
            self.record.write(self._link.place.url, place_id)

    def adopt_place(self) -> None:
        """Accept any destination at the configured address, because the user has chosen it.

        Raises:
            OSError: if the local disk fails.
        """
        if self._link is not None:
            self.record.forget(self._link.place.url)

    def start(self) -> None:
        """Start the copier, if there is a destination. Calling `nudge` has the same effect."""
        if self._copier is not None:
            self._copier.start()

    def try_again(self) -> None:
        """Immediately try to start a copier that has repeatedly failed, because the cause may be
        gone.
        """
        if self._copier is not None:
            self._copier.try_again()

    def nudge(self) -> None:
        """Notify the copier that a checkpoint was committed."""
        if self._copier is not None:
            self._copier.nudge()

    def finish(self, seconds: float | None = None, look: str | None = None) -> BackupStatus:
        """Wait until the newest checkpoint is confirmed and its files were checked once more.

        This waits at most `seconds` (default: `finish_seconds`). An interrupt ends the wait, but
        not the copier.

        Args:
            look: the token of a check that was requested before; "" for no check. By default, a
                check is requested now.
        """
        longest = self.options.finish_seconds if seconds is None else seconds
        deadline = time.monotonic() + longest
        self.nudge()
        newest = self.store.newest_healthy()
        token = self.begin_last_look() if look is None else look
        while True:
            status = self.status()
            is_over = status.is_settled(newest) and status.has_looked(token)
            if is_over or status.state in (OFF, FENCED, DOWN) or time.monotonic() >= deadline:
                return status
            time.sleep(POLL_SECONDS)

    def begin_last_look(self) -> str:
        """Request a check of the newest checkpoint at the destination, to be done after all
        copying.

        Returns:
            The token to pass to `BackupStatus.has_looked`.
        """
        token = secrets.token_hex(8)
        if self._copier is not None:
            self._copier.look_again(token)
        return token

    def close(self) -> None:
        """Tell the copier that the run has ended. The copier finishes by itself, within
        `finish_seconds`.

        If nothing is left to copy, this waits until the copier has ended, so that it no longer
        writes files in the run directory.
        """
        if self._copier is None:
            return
        is_over = read_status(self.status_path).confirmed_name == self.store.newest_healthy()
        self._copier.close(ENDS_SECONDS if is_over else 0.0)

    def wait_ended(self, seconds: float) -> bool:
        """Wait until the copier has ended, after `close`. Return False if it is still copying."""
        return self._copier is None or self._copier.wait(seconds)

    def forget_status(self) -> None:
        """Remove the recorded status, so that all copies must be confirmed again."""
        self.status_path.unlink(missing_ok=True)

    def publish(
        self,
        folder: Path,
        seconds: float | None = None,
        *,
        name: str | None = None,
        files: Sequence[str] = (),
        replaces: bool = False,
    ) -> str:
        """Copy a finished folder (`final/`, in plain Hugging Face layout) to `<place>/<run id>`.

        Each file is confirmed, and SHA256SUMS is written last. A different folder of this name at
        the destination is kept, unless `replaces` is True. The copier copies the folder after the
        checkpoints, and continues when this process ends.

        Args:
            name: the name at the destination; by default, the name of the folder.
            files: the names of the files in the folder to copy; empty means all.

        Returns:
            The URL of the copy.

        Raises:
            ValueError: if the folder is empty.
            StorageError: if copying takes longer than `seconds` (default: `finish_seconds`). Call
                this again to continue.
        """
        url = self._require_link().place.url
        longest = self.options.finish_seconds if seconds is None else seconds
        deadline = time.monotonic() + longest
        paths_in(folder, files)
        absolute, token = str(folder.resolve()), secrets.token_hex(8)
        what = Publication(token, absolute, name or folder.name, tuple(files), replaces)
        assert self._copier is not None
        self._copier.publish(what)
        while True:
            status = self.status()
            if (where := status.published_folders.get(token)) is not None:
                return where
            is_over = status.state in (FENCED, DOWN) or time.monotonic() >= deadline
            if is_over:
                problem = status.problem or phrase("backup.folder_not_confirmed_yet")
                raise StorageError(
                    "backup.folder_not_safe", folder=folder, url=url, problem=problem
                )
            time.sleep(POLL_SECONDS)

    def _stores(self) -> dict[str, Store]:
        if self._link is None:
            return {HERE: self.store}
        return {HERE: self.store, self._link.place.url: self._link.store}

    def _require_link(self) -> RemoteSession:
        if self._link is None:
            raise StorageError("backup.no_destination")
        return self._link

    def _unreachable(self, error: OSError) -> StorageError:
        link = self._require_link()
        return StorageError(f"{link.place.url}: {redact(str(error))}; {link.place.advice(error)}")


def last_place(checkpoints: Path) -> str | None:
    """Return the destination to which the checkpoints in this folder were last copied.

    Return None if they were never copied. A password is masked.
    """
    return read_status(checkpoints / STATUS_FILE).place or None


def place_options(config: DeploymentConfig) -> BackupConfig:
    """Return the section `backup`, with the destination removed if backups are off."""
    return config.backup if config.enable_backups else config.backup.copy_with(place=None)


def refuse_unreachable_place(options: BackupConfig) -> None:
    """Raise an error if the destination is visibly unusable, such as a missing disk.

    No connection is made.

    Raises:
        StorageError: if the destination cannot be used. The message says what to do.
        ValueError: if `options.place` is not a valid destination.
    """
    if options.place is None:
        return
    place = open_place(options.place)
    try:
        place.require_reachable()
    except OSError as error:
        if not options.allow_missing_place:
            way_out = phrase("backup.or_allow_missing_destination")
            raise StorageError(f"{_cannot_be_used(place, error)}{way_out}") from error


def _cannot_be_used(place: Place, error: OSError | StorageError) -> str:
    reason, advice = getattr(error, "strerror", None) or str(error), ""
    if isinstance(error, OSError):
        advice = f" ({place.advice(error)})"
    return redact(
        phrase("backup.destination_unusable", url=place.url, reason=reason, advice=advice)
    )
