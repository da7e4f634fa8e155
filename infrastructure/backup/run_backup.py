"""The backup of one run: its versions in a local store, and their copies at a place.

Committed is what is safe on this machine's disk; confirmed what is safe where this machine's death
cannot reach. A copier in a process of its own turns one into the other. Knows no torch.
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
CONTACT_SECONDS = 60.0  # a place that says nothing for so long before the training will not do

ENDS_SECONDS = 10.0  # with nothing left to copy it ends at once, on a busy machine (niced) later


class RunBackup:
    """The backups of one run.

    Args:
        directory: the local store; for a training the `checkpoints` folder of its run.
        options: section `backup` of the configuration.
        run_id: the folder at the place, `<place>/<run id>`; none: the directory's name.
        status_path: where the copier says how it stands; none: in the store.
        traceback_path: where it keeps the traceback of an error that nobody foresaw; none: nowhere.
        retention: what stays on this machine.

    Raises:
        ValueError: no such place.
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
        self.place_id: str | None = None  # as `check_place` has found it
        self.is_missing = False  # at the start, and a training may begin without it
        self._link: RemoteSession | None = None
        self._copier: CopierClient | None = None
        if self.options.place is not None:
            require_backend(self.options.place)  # the copier opens it, too
            settings = self._settings(self.options.place)
            self._link = settings.link()  # which connects to nothing yet
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
        """How other machines of the training copy what they hold; None: there is no place, or
        nobody knows yet which it is."""
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
        """Fetch the newest healthy version (or that of `step`) from the place into the local store,
        verified; damaged newer ones are passed over with a warning. What is whole here is not
        fetched again.

        Returns:
            Its manifest here.

        Raises:
            CheckpointError: there is none.
            StorageError: the place does not answer, or this machine's disk refuses.
        """
        link = self._require_link()
        with only_writer(self.store.root):
            name = fetch_newest(link, self.store, step, on_progress or do_nothing)
            self._adopt(link)
        if step is None:
            self._note_fetched(name, redact_urls(link.place.url))
        return self.store.manifest_path(name)

    def _adopt(self, link: RemoteSession) -> None:
        """What lies at the place is this store's past from here on.

        Raises:
            StorageError: the place does not answer, or this machine's disk refuses.
        """
        try:
            claimed = Claims(link).holder()  # perhaps of a copier that died before its manifest
            names = [*link.store.versions(), *([claimed] if claimed else [])]
            Lineage(self.store.root).restored(names)
        except OSError as error:
            raise self._unreachable(error) from error

    def _note_fetched(self, name: str, place: str) -> None:
        """Where nothing is known of the copies: what was just read there, whole, is safe there."""
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
        with suppress(OSError):  # it is a note for people
            write_status(self.status_path, status)

    def repair(self, directory: Path | None = None) -> list[Repair]:
        """Bring back what is damaged or missing here, from the place and from copies in versions;
        for whoever is about to go on with the run.

        Args:
            directory: of the run, whose small files are compared too.

        Returns:
            All that was damaged. Empty: nothing is known to be.

        Raises:
            StorageError: this machine's disk refuses.
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
        """All versions here and at the place, the newest first.

        Raises:
            StorageError: the place does not answer.
        """
        try:
            return list_entries(self._stores())
        except OSError as error:
            raise self._unreachable(error) from error

    def verify(self) -> list[VerifiedVersion]:
        """Read every version, here and at the place, and compare it with what was written. Damage,
        and a place that does not answer, is in the findings."""
        return [
            finding for where, store in self._stores().items() for finding in self._of(where, store)
        ]

    def _of(self, where: str, store: Store) -> Iterator[VerifiedVersion]:
        try:
            yield from verify_all(where, store)
        except OSError as error:
            yield VerifiedVersion(where, None, None, str(self._unreachable(error)))

    def status(self) -> BackupStatus:
        """How the copy stands; a copier that died is started again."""
        if self._copier is None or self._link is None:
            return BackupStatus(state=OFF)
        if self._copier.is_started:
            self._copier.start()
        place = redact_urls(self._link.place.url)
        is_ours = self._copier.process_id is not None
        status = read_status(self.status_path) if is_ours else live_status(self.status_path)
        if status.place != place:
            status = BackupStatus()  # of another place, from before
        if status.state == FINISHED and not is_ours:
            status = self._with_newer(status)
        if self._copier.cannot_run:
            return self._copier_down(self._copier, replace(status, place=place))
        if self._copier.process_id is not None and status.state == DOWN:
            return replace(status, state=STARTING)  # what ended those before it may be gone
        if self._copier.failure is not None and status.error is None:
            return replace(
                status, error=phrase("backup.copier_failed", reason=self._copier.failure)
            )
        return status

    def _with_newer(self, status: BackupStatus) -> BackupStatus:
        """What the last copier wrote when all was confirmed; since then the run may have been
        trained on without a copier."""
        newest = self.store.newest_healthy()
        if newest is None or newest == status.newest_name:
            return status
        step = self.store.outline(newest).step
        return replace(status, state=LEFT, newest_name=newest, newest_step=step)

    def _copier_down(self, copier: CopierClient, known: BackupStatus) -> BackupStatus:
        """What is known of the copy, and that nobody copies; others read it in the file."""
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
            with suppress(OSError):  # a disk that refuses is asked again
                write_status(self.status_path, status)
        return status

    @property
    def num_copier_failures(self) -> int:
        """How often in a row the process that copies could not be started, or ended soon."""
        return 0 if self._copier is None else self._copier.num_failures

    def look_after(self) -> None:
        """Start a copier that died again, and tell where it cannot run: call it often."""
        if self._copier is not None and self._copier.is_started:
            self._copier.start()
            if self._copier.cannot_run:
                self.status()

    def prune(self) -> list[str]:
        """Remove old versions here, and at the place those that `keep` newer ones replace which
        were read back there. Objects at the place that no version names go with the next call that
        is an hour later.

        Returns:
            What was done, in sentences.

        Raises:
            StorageError: the disk or the place refuses; nothing that is kept is touched.
        """
        with only_writer(self.store.root):
            removed = self.store.remove_all_but(versions_to_keep(self.store, self.retention))
        sentences = [f"{len(removed)} versions removed here"]
        if self._link is None:
            return sentences
        record = self.status_path.with_name("backup-unnamed.json")
        try:
            settings = self._settings(str(self.options.place))
            return [*sentences, *prune_once(self._link, settings.retention, record)]
        except OSError as error:
            raise self._unreachable(error) from error

    def check_place(self) -> str | None:
        """Make sure, before the first step, that the place can be reached, is the one that this
        run was copied to before, and may be written to.

        Returns:
            None; or, where `allow_missing_place` lets a training begin without it, what is wrong.

        Raises:
            StorageError: it is not there; says what to do.
        """
        if self._link is None:
            return None
        place = self._link.place
        try:
            within(CONTACT_SECONDS, self._contact)
            self.is_missing = False
            return None
        except (OSError, StorageError) as error:  # TimeoutError is an OSError
            message = _cannot_be_used(place, error)
        if self.options.allow_missing_place:
            self.is_missing = True
            return message
        raise StorageError(f"{message}{phrase('backup.or_allow_missing_destination')}")

    def _contact(self) -> None:
        link = self._require_link()
        self.place_id = link.place.identify(self.record.id_of(link.place.url))
        link.place.probe()

    def remember_place(self, place_id: str | None) -> None:
        """Write down which place this run is copied to; None: nobody has seen it yet.

        Raises:
            OSError: this machine's disk refuses.
        """
        if self._link is not None and place_id is not None:
            self.record.write(self._link.place.url, place_id)

    def adopt_place(self) -> None:
        """From here on the place is whichever lies there now: a person has named it.

        Raises:
            OSError: this machine's disk refuses.
        """
        if self._link is not None:
            self.record.forget(self._link.place.url)

    def start(self) -> None:
        """Start the copier, where there is a place. `nudge` does too."""
        if self._copier is not None:
            self._copier.start()

    def try_again(self) -> None:
        """Start a copier that cannot run once more: what is waited for now may work by now."""
        if self._copier is not None:
            self._copier.try_again()

    def nudge(self) -> None:
        """Tell the copier that a version was committed."""
        if self._copier is not None:
            self._copier.nudge()

    def finish(self, seconds: float | None = None, look: str | None = None) -> BackupStatus:
        """Wait until the newest version is confirmed, and was looked at again after that, at most
        `seconds` (`finish_seconds`); an interrupt ends the wait and not the copier.

        Args:
            look: the token of a look that was asked for before, "" for none; None: it is asked for
                now.
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
        """Ask for a look at all of the newest version at the place, after whatever is still to be
        copied; the token that `BackupStatus.has_looked` knows."""
        token = secrets.token_hex(8)
        if self._copier is not None:
            self._copier.look_again(token)
        return token

    def close(self) -> None:
        """The training has ended: the copier finishes by itself, within `finish_seconds`. One that
        has nothing left to copy is gone when this returns, and writes in the run no more."""
        if self._copier is None:
            return
        is_over = read_status(self.status_path).confirmed_name == self.store.newest_healthy()
        self._copier.close(ENDS_SECONDS if is_over else 0.0)

    def wait_ended(self, seconds: float) -> bool:
        """Wait until the copier has ended, after `close`; False: it still copies."""
        return self._copier is None or self._copier.wait(seconds)

    def forget_status(self) -> None:
        """What was told of the copy before does not count: all is confirmed anew."""
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
        """Copy a finished folder (`final/`, in plain Hugging Face layout) to `<place>/<run id>`,
        each file confirmed, SHA256SUMS last. Another one that is there stays as it is, unless
        `replaces`. The copier does it, after the versions, and goes on when this process ends.

        Args:
            name: at the place; None: the folder's own.
            files: names in it; none: all.

        Returns:
            Where it is.

        Raises:
            ValueError: the folder is empty.
            StorageError: it was not done within `seconds` (`finish_seconds`); call again to go on.
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
    """Where the versions in this folder were copied to last, whoever asked for it; a password in it
    is masked. None: they were never copied."""
    return read_status(checkpoints / STATUS_FILE).place or None


def place_options(config: DeploymentConfig) -> BackupConfig:
    """Section `backup`, without a place where backups are off."""
    return config.backup if config.enable_backups else config.backup.copy_with(place=None)


def refuse_unreachable_place(options: BackupConfig) -> None:
    """Refuse what shows of the place without connecting to anything: a disk that is not there.

    Raises:
        StorageError: says what to do.
        ValueError: `options.place` is not an address.
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
