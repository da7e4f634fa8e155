"""Backups of a training: versions in a local store, and their copies at a place.

    backups = create_backup_system(place="/mnt/other-disk/temper")
    path = backups.create_checkpoint(model, optimizer, epoch=10, step=1000, loss=0.5)
    state = backups.restore_from_checkpoint(model, optimizer)

Committed is what is safe on this machine's disk; confirmed what is safe where this machine's death
cannot reach. A copier in a process of its own turns one into the other.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from infrastructure.backup.backup_status import OFF, BackupStatus, read_status
from infrastructure.backup.copier_client import CopierClient
from infrastructure.backup.copier_process import CopierSettings
from infrastructure.backup.fetching import fetch_newest
from infrastructure.backup.manifest import Manifest
from infrastructure.backup.model_state import ModelState, capture, restore, stored
from infrastructure.backup.open_object import Progress
from infrastructure.backup.place_pruning import prune_once
from infrastructure.backup.published_folder import PublishedFolder
from infrastructure.backup.replication import Link
from infrastructure.backup.retention import Retention, versions_to_keep
from infrastructure.backup.room import require_room
from infrastructure.backup.store import Store
from infrastructure.backup.tensor_bytes import from_bytes
from infrastructure.backup.version_list import (
    HERE,
    BackupEntry,
    Finding,
    list_entries,
    verify_all,
)
from infrastructure.backup.writer_process import only_writer
from infrastructure.config.backup_config import BackupConfig
from infrastructure.core.errors import CheckpointError, StorageError, TemperError
from infrastructure.core.redact import redact

STATUS_FILE = "backup.json"
POLL_SECONDS = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmergencyResult:
    """What an emergency backup reached.

    Attributes:
        path: the version's manifest; None: nothing was written, `error` says why.
        confirmed: whether it is safe at the place too.
        seconds: how long that took.
    """

    path: Path | None
    confirmed: bool
    seconds: float
    error: str | None = None

    @property
    def committed(self) -> bool:
        """Whether it is safe on this machine's disk."""
        return self.path is not None


class BackupSystem:
    """The backups of one run.

    Args:
        directory: the local store; for a training the `checkpoints` folder of its run.
        options: section `backup` of the configuration.
        run_id: the folder at the place, `<place>/<run id>`; none: the directory's name.
        status_path: where the copier says how it stands; none: in the store.
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
        retention: Retention | None = None,
    ) -> None:
        self.store = Store(directory)
        self.options = options or BackupConfig()
        self.run_id = run_id or directory.resolve().name
        self.status_path = status_path or directory / STATUS_FILE
        self.retention = retention or Retention(keep_best=1)
        self._link: Link | None = None
        self._copier: CopierClient | None = None
        if self.options.place is not None:
            settings = self._settings(self.options.place)
            self._link = settings.link()
            self._copier = CopierClient(settings)

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
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_checkpoint(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        epoch: int,
        step: int,
        loss: float,
        metrics: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        kind: str = "manual",
    ) -> Path:
        """Write a version: weights, buffers, optimizer, random state. It is committed when this
        returns, and on its way to the place.

        Args:
            loss: of this state; one that is not finite makes it a version that no restore chooses
                by itself.
            metrics, values: JSON, given back by `restore_from_checkpoint`.

        Returns:
            Its manifest, which is its name everywhere.

        Raises:
            ValueError: something of it can be stored neither as a tensor nor as JSON.
            StorageError: the disk refuses; the versions before are untouched.
        """
        state = capture(model, optimizer)
        facts = {"epoch": epoch, "step": step, "loss": loss if math.isfinite(loss) else None}
        state.values |= {**facts, "metrics": dict(metrics or {}), "values": dict(values or {})}
        with only_writer(self.store.root):
            self.store.sweep()
            name = self.store.commit(
                stored(state), state.values, step=step, kind=kind, healthy=math.isfinite(loss)
            )
            self.store.remove_all_but(versions_to_keep(self.store, self.retention))
        self.nudge()
        return self.store.manifest_path(name)

    def emergency_backup(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        epoch: int,
        step: int,
        loss: float,
        seconds: float | None = None,
        **others: Any,
    ) -> EmergencyResult:
        """As `create_checkpoint`, for a machine that is about to go: never raises for what goes
        wrong with the state, the disk or the place, and waits at most `seconds`
        (`emergency_seconds`) for the copy."""
        begin = time.monotonic()
        budget = self.options.emergency_seconds if seconds is None else seconds
        try:
            path = self.create_checkpoint(
                model, optimizer, epoch=epoch, step=step, loss=loss, kind="emergency", **others
            )
        except (TemperError, OSError, ValueError, RuntimeError) as error:
            log.error("the emergency backup was not written: %s", redact(str(error)))
            return EmergencyResult(None, False, time.monotonic() - begin, redact(str(error)))
        status = self.finish(budget - (time.monotonic() - begin))
        confirmed = status.confirmed_name == path.stem
        return EmergencyResult(path, confirmed, time.monotonic() - begin, status.error)

    def restore_from_checkpoint(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        checkpoint: Path | str | int | None = None,
    ) -> dict[str, Any]:
        """Put a version back into `model` and `optimizer`, and set the random generators back.

        Args:
            checkpoint: a manifest's path, a step, or none: the newest healthy version that
                verifies. Where this machine has none, it is fetched from the place.

        Returns:
            epoch, step, loss (None: not finite), metrics, values, checkpoint_path.

        Raises:
            CheckpointError: there is none, it is damaged, or it does not fit; nothing was changed.
            StorageError: the place does not answer, or this machine's disk refuses.
        """
        name = self._find(checkpoint)
        manifest = self.store.read(name)
        state = ModelState({}, manifest.values)
        for full_name, tensor in self.store.load(manifest):
            group, _, tensor_name = full_name.partition("/")
            state.tensors.setdefault(group, {})[tensor_name] = from_bytes(tensor)
        restore(state, model, optimizer)
        told = ("epoch", "step", "loss", "metrics", "values")
        path = self.store.manifest_path(name)
        return {**{key: manifest.values.get(key) for key in told}, "checkpoint_path": path}

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
            name = fetch_newest(link, self.store, step, on_progress or _silent)
        return self.store.manifest_path(name)

    def list_backups(self) -> list[BackupEntry]:
        """All versions here and at the place, the newest first.

        Raises:
            StorageError: the place does not answer.
        """
        try:
            return list_entries(self._stores())
        except OSError as error:
            raise self._unreachable(error) from error

    def verify(self) -> list[Finding]:
        """Read every version, here and at the place, and compare it with what was written. Damage,
        and a place that does not answer, is in the findings."""
        return [
            found for where, store in self._stores().items() for found in self._of(where, store)
        ]

    def _of(self, where: str, store: Store) -> Iterator[Finding]:
        try:
            yield from verify_all(where, store)
        except OSError as error:
            yield Finding(where, None, None, str(self._unreachable(error)))

    def status(self) -> BackupStatus:
        """How the copy stands; a copier that died is started again."""
        if self._copier is None:
            return BackupStatus(state=OFF)
        if self._copier.is_started:
            self._copier.start()
        status = read_status(self.status_path)
        if self._copier.num_restarts and status.error is None:
            told = f"the copier died and was started again ({self._copier.num_restarts})"
            return replace(status, error=told)
        return status

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
        told = [f"{len(removed)} versions removed here"]
        if self._link is None:
            return told
        record = self.status_path.with_name("backup-unnamed.json")
        try:
            settings = self._settings(str(self.options.place))
            return [*told, *prune_once(self._link, settings.retention, record)]
        except OSError as error:
            raise self._unreachable(error) from error

    def require_room(self, bytes_per_version: int) -> list[str]:
        """Sentences on the room here and at the place, before the first step.

        Raises:
            StorageError: what rotation keeps does not fit.
        """
        told = require_room(HERE, self.store, self.retention.keep_last, bytes_per_version)
        if self._link is None:
            return [told]
        try:
            url, keep = self._link.place.url, self.options.keep
            return [told, require_room(f"at {url}", self._link.store, keep, bytes_per_version)]
        except OSError as error:
            raise self._unreachable(error) from error

    def start(self) -> None:
        """Start the copier, where there is a place. `nudge` does too."""
        if self._copier is not None:
            self._copier.start()

    def nudge(self) -> None:
        """Tell the copier that a version was committed."""
        if self._copier is not None:
            self._copier.nudge()

    def finish(self, seconds: float | None = None) -> BackupStatus:
        """Wait until the newest version is confirmed, at most `seconds` (`finish_seconds`); an
        interrupt ends the wait and not the copier."""
        longest = self.options.finish_seconds if seconds is None else seconds
        deadline = time.monotonic() + longest
        self.nudge()
        newest = self._newest_name()
        while True:
            status = self.status()
            is_over = status.confirmed_name == newest or status.state in (OFF, "fenced")
            if is_over or time.monotonic() >= deadline:
                return status
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """The training has ended: the copier finishes by itself, within `finish_seconds`."""
        if self._copier is not None:
            self._copier.close()

    def publish(self, folder: Path, seconds: float | None = None) -> str:
        """Copy a finished folder (`final/`, in plain Hugging Face layout) to `<place>/<run id>`,
        each file confirmed, SHA256SUMS last. Another one that is there stays as it is.

        Returns:
            Where it is.

        Raises:
            ValueError: the folder is empty.
            StorageError: it was not done within `seconds` (`finish_seconds`); call again to go on.
        """
        link = self._require_link()
        longest = self.options.finish_seconds if seconds is None else seconds
        parent = Path(self.run_id)
        copy = PublishedFolder(link.place, parent, folder, folder.name, link.bandwidth)
        return f"{link.place.url}/{copy.copy(longest).as_posix()}"

    def _stores(self) -> dict[str, Store]:
        if self._link is None:
            return {HERE: self.store}
        return {HERE: self.store, self._link.place.url: self._link.store}

    def _require_link(self) -> Link:
        if self._link is None:
            raise StorageError("there is no place to copy to or from: give backup.place")
        return self._link

    def _unreachable(self, error: OSError) -> StorageError:
        link = self._require_link()
        return StorageError(f"{link.place.url}: {redact(str(error))}; {link.place.advice(error)}")

    def _newest_name(self) -> str | None:
        return next((name for name in self.store.versions() if _is_healthy(self.store, name)), None)

    def _find(self, checkpoint: Path | str | int | None) -> str:
        """The name of a version that is in the local store."""
        if isinstance(checkpoint, Path | str):
            return Path(checkpoint).stem
        if checkpoint is not None:
            return self._find_step(checkpoint)
        name, rejected = self.store.newest()
        for version in rejected:
            log.warning("skipping damaged version %s: %s", version.name[:12], version.reason)
        if name is not None:
            return name
        if self._link is not None:
            return self.restore_run().stem
        raise CheckpointError(f"{self.store.root} holds no version that can be restored")

    def _find_step(self, step: int) -> str:
        for name in self.store.versions():
            manifest = _read(self.store, name)
            if manifest is not None and manifest.step == step:
                return name
        if self._link is not None:
            return self.restore_run(step).stem
        raise CheckpointError(f"{self.store.root} holds no version of step {step}")


def create_backup_system(
    directory: str | Path = "backups",
    place: str | None = None,
    *,
    run_id: str | None = None,
    **options: Any,
) -> BackupSystem:
    """A backup system with its store in `directory`, and copies at `place` if one is given.

    Args:
        run_id: names the copies at the place; none: the directory's name.
        options: the other settings of section `backup`: keep, compression, megabytes_per_second,
            finish_seconds, emergency_seconds.

    Raises:
        ValueError: a setting that there is not, or a value that it cannot have.
    """
    return BackupSystem(Path(directory), BackupConfig(place=place, **options), run_id=run_id)


def _read(store: Store, name: str) -> Manifest | None:
    try:
        return store.read(name)
    except CheckpointError:
        return None


def _is_healthy(store: Store, name: str) -> bool:
    manifest = _read(store, name)
    return manifest is not None and manifest.healthy


def _silent(done_bytes: int, total_bytes: int) -> None:
    return
