"""Backups of a run: checkpoints in a local store, and their copies at a backup destination.

    backups = create_backup_system(place="/mnt/other-disk/temper")
    path = backups.create_checkpoint(model, optimizer, epoch=10, step=1000, loss=0.5)
    state = backups.restore_from_checkpoint(model, optimizer)

A checkpoint is committed when it is safe on this machine's disk, and confirmed when it is safe from
the loss of this machine. A copier in a separate process turns committed checkpoints into confirmed
ones.
"""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.retention import versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.backup.format.tensor_bytes import from_bytes
from infrastructure.backup.run_backup import RunBackup
from infrastructure.backup.state.model_state import ModelState, capture, restore, stored
from infrastructure.backup.writer.writer_process import only_writer
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import CheckpointError, TemperError
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmergencyResult:
    """The result of an emergency backup.

    Attributes:
        path: the manifest of the checkpoint, or None if nothing was written.
        error: the reason if nothing was written.
        confirmed: whether the checkpoint is also safe at the destination.
        seconds: how long the backup took.
    """

    path: Path | None
    confirmed: bool
    seconds: float
    error: str | None = None

    @property
    def committed(self) -> bool:
        """True if the checkpoint is safe on this machine's disk."""
        return self.path is not None


class BackupSystem(RunBackup):
    """The backups of a run, and checkpoints of any torch model and optimizer.

    The constructor takes the arguments of `RunBackup`.
    """

    def create_checkpoint(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        epoch: int,
        step: int,
        loss: float,
        metrics: Mapping[str, object] | None = None,
        values: Mapping[str, object] | None = None,
        kind: str = "manual",
    ) -> Path:
        """Write a version: weights, buffers, optimizer state and random state.

        The checkpoint is committed when this returns, and the copier has been notified.

        Args:
            loss: the loss of this state. If it is not finite, a restore uses the checkpoint only on
                request.
            metrics, values: JSON values that `restore_from_checkpoint` returns.

        Returns:
            The path of the manifest. Its stem is the name of the checkpoint in every store.

        Raises:
            ValueError: if a part of the state can be stored neither as a tensor nor as JSON.
            StorageError: if the local disk fails. Earlier checkpoints are not affected.
        """
        given = {"metrics": dict(metrics or {}), "values": dict(values or {})}
        facts = {"epoch": epoch, "step": step, "loss": loss if math.isfinite(loss) else None}
        state = capture(model, optimizer, {**facts, **given})
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
        """Write a checkpoint like `create_checkpoint`, on a machine that is about to disappear.

        No exception is raised if the state cannot be stored, or if the disk or the destination
        fails. The call waits at most `seconds` (default: `emergency_seconds`) until the destination
        confirms the copy.
        """
        begin = time.monotonic()
        budget = self.options.emergency_seconds if seconds is None else seconds
        try:
            path = self.create_checkpoint(
                model, optimizer, epoch=epoch, step=step, loss=loss, kind="emergency", **others
            )
        except (TemperError, OSError, ValueError, RuntimeError) as error:
            log.error(phrase("backup.emergency_save_failed", error=redact(str(error))))
            return EmergencyResult(None, False, time.monotonic() - begin, redact(str(error)))
        status = self.finish(budget - (time.monotonic() - begin), look="")
        confirmed = status.confirmed_name == path.stem
        return EmergencyResult(path, confirmed, time.monotonic() - begin, status.error)

    def restore_from_checkpoint(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        checkpoint: Path | str | int | None = None,
    ) -> dict[str, object]:
        """Restore `model`, `optimizer` and the random generators from a checkpoint.

        Args:
            checkpoint: the path of a manifest, or a step; by default, the newest healthy checkpoint
                that verifies. Unless a path is given, a checkpoint that is missing on this machine
                is fetched from the destination.

        Returns:
            A dictionary with the keys epoch, step, loss (None if it is not finite), metrics, values
            and checkpoint_path.

        Raises:
            CheckpointError: if there is no such checkpoint, or it is damaged or does not fit the
                model. Nothing is changed then.
            StorageError: if the destination does not respond, or the local disk fails.
        """
        name = self._find(checkpoint)
        manifest = self.store.read(name)
        state = ModelState({}, manifest.values)
        for full_name, tensor in self.store.load(manifest):
            group, _, tensor_name = full_name.partition("/")
            state.tensors.setdefault(group, {})[tensor_name] = from_bytes(tensor)
        restore(state, model, optimizer)
        keys = ("epoch", "step", "loss", "metrics", "values")
        path = self.store.manifest_path(name)
        return {**{key: manifest.values.get(key) for key in keys}, "checkpoint_path": path}

    def _find(self, checkpoint: Path | str | int | None) -> str:
        """Return the name of a checkpoint in the local store, fetching it if necessary."""
        if isinstance(checkpoint, Path | str):
            return Path(checkpoint).stem
        if checkpoint is not None:
            return self._find_step(checkpoint)
        name, rejected = self.store.newest()
        for version in rejected:
            damage = f"{version.name[:12]}: {version.reason}"
            url = self.store.root
            log.warning(phrase("backup.skips_damaged_checkpoint", url=url, damage=damage))
        if name is not None:
            return name
        if self._link is not None:
            return self.restore_run().stem
        raise CheckpointError("backup.no_restorable_checkpoint", root=self.store.root)

    def _find_step(self, step: int) -> str:
        for name in self.store.versions():
            manifest = _read(self.store, name)
            if manifest is not None and manifest.step == step:
                return name
        if self._link is not None:
            return self.restore_run(step).stem
        raise CheckpointError("backup.no_checkpoint_of_step", root=self.store.root, step=step)


def create_backup_system(
    directory: str | Path = "backups",
    place: str | None = None,
    *,
    run_id: str | None = None,
    **options: Any,
) -> BackupSystem:
    """Create a backup system with a local store in `directory`, and copies at `place` if given.

    Args:
        run_id: the name of the copies at the destination; by default, the name of the directory.
        options: the other settings of section `backup`: keep, compression, megabytes_per_second,
            finish_seconds, emergency_seconds.

    Raises:
        ValueError: if a setting does not exist or has an invalid value.
    """
    return BackupSystem(Path(directory), BackupConfig(place=place, **options), run_id=run_id)


def _read(store: Store, name: str) -> Manifest | None:
    try:
        return store.read(name)
    except CheckpointError:
        return None
