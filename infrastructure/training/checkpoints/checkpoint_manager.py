"""Manager of a run's checkpoints, which are versions in a store (see backup/FORMAT.md).

A checkpoint is identified by the path of its manifest, and is verified when it is read. A damaged
checkpoint is skipped with a warning, and the one before it is used.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from infrastructure.backup.format.manifest import COPIED_APART, Pack, StoredTensor
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention, versions_to_keep
from infrastructure.backup.format.store import Placed, Store
from infrastructure.backup.format.tensor_bytes import to_bytes
from infrastructure.backup.replication.apart import ApartSettings
from infrastructure.backup.replication.upload import fetch_objects
from infrastructure.backup.writer.background_writer import BackgroundWriter
from infrastructure.backup.writer.shared_buffer import State, size_of_state
from infrastructure.backup.writer.writer_process import only_writer
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import is_sharded
from infrastructure.models.trainable_state import load_trainable_state
from infrastructure.run.checkpoint_paths import best_of, step_of, store_of
from infrastructure.training.checkpoints.chunked_version import KEY, tensors_of
from infrastructure.training.checkpoints.snapshot import Snapshot, VersionFacts

# Smaller ones are written faster than a helper process starts.
BACKGROUND_BYTES = 32 * 1024**2
DEFAULT_RETENTION = Retention()

log = logging.getLogger(__name__)


class CheckpointManager:
    """A manager that saves, lists, verifies, loads and prunes the checkpoints of one run.

    Args:
        directory: the run's `checkpoints` folder.
        retention: which checkpoints to keep when old ones are removed.
        run_files: returns files of the run that every checkpoint also contains; see
            `backup.run_files`.

    Attributes:
        apart: returns where other machines store their parts of a checkpoint, or None if all parts
            are in this store.
    """

    def __init__(
        self,
        directory: Path,
        retention: Retention = DEFAULT_RETENTION,
        run_files: Callable[[], Mapping[str, TensorBytes]] = dict,
    ) -> None:
        self.store = Store(directory)
        self.retention = retention
        self.run_files = run_files
        self.apart: Callable[[], ApartSettings | None] = lambda: None
        self._writer: BackgroundWriter | None = None
        self._committed: list[str] = []

    def save(self, snapshot: Snapshot, **facts: Unpack[VersionFacts]) -> Path:
        """Write a checkpoint of `snapshot`, then remove old checkpoints according to the retention
        rules.

        Args:
            facts: kind, healthy and score, as in `Store.commit`.

        Raises:
            StorageError: the disk returns an error. Earlier checkpoints are untouched.
        """
        self._take_in(wait=True)
        state = self._state(snapshot)
        return self._save(as_bytes(state), snapshot, facts)

    def _save(
        self, tensors: Mapping[str, TensorBytes], snapshot: Snapshot, facts: VersionFacts
    ) -> Path:
        step = snapshot.values["step"]
        with self.only_writer():
            self.store.sweep()
            name = self.store.commit(tensors, snapshot.values, step=step, **facts)
            self.store.remove_all_but(versions_to_keep(self.store, self.retention))
        return self.store.manifest_path(name)

    def begin(self, snapshot: Snapshot, **facts: Unpack[VersionFacts]) -> None:
        """Copy `snapshot` to memory now, and write it as a checkpoint in the background if it is
        large.

        A small checkpoint is written immediately. `collect` returns each one once it is committed.

        Raises:
            StorageError: as in `save`, or the previous checkpoint could not be written.
        """
        self._take_in(wait=True)
        state = self._state(snapshot)
        if size_of_state(state) < BACKGROUND_BYTES:
            self._committed.append(self._save(as_bytes(state), snapshot, facts).stem)
            return
        if self._writer is None:
            self._writer = BackgroundWriter(self.store.root, self.retention)
        self._writer.begin(state, snapshot.values, step=snapshot.values["step"], **facts)

    def _state(self, snapshot: Snapshot) -> State:
        return {**by_full_name(snapshot), **self.files()}

    def files(self) -> Mapping[str, TensorBytes]:
        """Return the run's files that every checkpoint contains; empty if they cannot be read."""
        try:
            return self.run_files()
        except OSError as error:  # resuming does not need them
            log.warning(phrase("run.run_files_not_in_checkpoint", error=error))
            return {}

    def note_committed(self, name: str) -> None:
        """Register a checkpoint that several ranks have written, so that `collect` returns it."""
        self._committed.append(name)

    def write_by_parts(
        self, values: dict[str, Any], **facts: Unpack[VersionFacts]
    ) -> "PartwiseCheckpoint":
        """Begin a checkpoint to which the caller adds a few tensors at a time."""
        self._take_in(wait=True)
        return PartwiseCheckpoint(self, values, facts)

    def collect(self, wait: bool = False) -> list[Path]:
        """Return the checkpoints committed since the last call of `collect`.

        Args:
            wait: wait for a checkpoint that is still being written.

        Raises:
            StorageError: a checkpoint could not be written. Earlier ones are untouched.
        """
        self._take_in(wait)
        committed, self._committed = self._committed, []
        return [self.store.manifest_path(name) for name in committed]

    def close(self) -> None:
        """Finish the current write, and end the helper process that writes checkpoints."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def only_writer(self) -> AbstractContextManager[None]:
        """Return a context in which no other process can write to the store.

        If a helper process writes the checkpoints, it already holds the lock.
        """
        return nullcontext() if self._writer is not None else only_writer(self.store.root)

    def _take_in(self, wait: bool) -> None:
        name = self._writer.collect(wait) if self._writer else None
        if name is not None:
            self._committed.append(name)

    def checkpoints(self) -> list[Path]:
        """Return all checkpoints, oldest first, verified or not."""
        return [self.store.manifest_path(name) for name in reversed(self.store.versions())]

    def is_healthy(self, checkpoint: Path) -> bool:
        """Return whether the checkpoint was marked as healthy, so that a run may resume from it.

        This does not check for damage to its tensors.

        Raises:
            CheckpointError: its manifest is damaged.
        """
        return self.store.outline(checkpoint.stem).healthy

    def fetch_parts(self, checkpoint: Path) -> None:
        """Download the parts of a checkpoint that other machines wrote to the backup destination.

        Raises:
            CheckpointError: the parts are unavailable.
        """
        manifest = self.store.read(checkpoint.stem)
        apart = self.apart() if manifest.copied_apart else None
        if apart is None:
            return
        try:
            with self.only_writer():
                fetch_objects(apart.link().store, manifest, self.store, run_files=False)
        except (OSError, StorageError, ValueError) as error:
            raise CheckpointError("run.foreign_parts_unreadable", error=error) from error

    def newest(self) -> Path:
        """Return the newest healthy, undamaged checkpoint, and warn about damaged newer ones.

        First wait until the helper process of a killed run has finished writing.

        Raises:
            CheckpointError: there is no such checkpoint.
        """
        with self.only_writer():
            name, rejected = self.store.newest()
        damage = [f"{version.name[:12]}: {version.reason}" for version in rejected]
        for text in damage:
            log.warning(phrase("training.skipping_damaged_checkpoint", damage=text))
        if name is not None:
            return self.store.manifest_path(name)
        reason, advice = "; ".join(damage), phrase("run.restore_intact_checkpoint")
        if not damage:
            reason = phrase("run.no_checkpoint_saved_yet")
            advice = phrase("run.save_more_often")
        raise CheckpointError(
            "run.nothing_to_resume_from",
            root=self.store.root,
            reason=reason,
            advice=advice,
        )


class PartwiseCheckpoint:
    """A checkpoint written a few tensors at a time, so that it is never in memory as a whole.

    `commit` raises the first error of `add`, so that the caller can still add all tensors.
    """

    def __init__(
        self, manager: CheckpointManager, values: dict[str, Any], facts: VersionFacts
    ) -> None:
        self.manager = manager
        self.values, self.facts = values, facts
        self._packs: dict[Pack, int] = {}
        self._tensors: dict[str, StoredTensor] = {}
        self._error: StorageError | None = None
        self._lock = ExitStack()
        self._lock.enter_context(manager.only_writer())
        manager.store.sweep()
        self.add(manager.files())

    def add(self, tensors: Mapping[str, TensorBytes]) -> None:
        """Write these tensors to the store."""
        if self._error is not None or not tensors:
            return
        try:
            placed = self.manager.store.place(tensors)
        except StorageError as error:
            self._error = error
            return
        numbers = [self._packs.setdefault(pack, len(self._packs)) for pack in placed.packs]
        self._tensors |= {
            name: replace(stored, pack=numbers[stored.pack])
            for name, stored in placed.tensors.items()
        }

    def commit(self) -> None:
        """Commit the added tensors as one checkpoint, which the manager's next `collect` returns.

        Raises:
            StorageError: the disk returned an error for a tensor. No checkpoint was made.
        """
        store = self.manager.store
        with self._lock:
            if self._error is not None:
                raise self._error
            placed = Placed(tuple(self._packs), self._tensors)
            name = store.publish(placed, self.values, step=self.values["step"], **self.facts)
            store.remove_all_but(versions_to_keep(store, self.manager.retention))
        self.manager.note_committed(name)


def by_full_name(snapshot: Snapshot) -> dict[str, torch.Tensor]:
    """Return a snapshot's tensors by their full names, "group/name"."""
    return {
        f"{group}/{name}": tensor
        for group, members in snapshot.tensors.items()
        for name, tensor in members.items()
    }


def as_bytes(state: State) -> dict[str, TensorBytes]:
    """Return the tensors of `state` as bytes. For CPU tensors, the bytes share the tensors'
    memory.
    """
    return {
        name: tensor if isinstance(tensor, TensorBytes) else to_bytes(tensor)
        for name, tensor in state.items()
    }


def load_values(checkpoint: Path) -> Snapshot:
    """Read the JSON values of a checkpoint, without its tensors.

    Raises:
        CheckpointError: its manifest is damaged.
    """
    manifest = store_of(checkpoint).read(checkpoint.stem)
    return Snapshot({}, own_values(manifest.values))


def load_checkpoint(checkpoint: Path) -> Snapshot:
    """Read and verify a checkpoint, with all tensors on the CPU.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    store = store_of(checkpoint)
    manifest = store.read(checkpoint.stem)
    return Snapshot(tensors_of(store, manifest), own_values(manifest.values))


def own_values(values: JsonObject) -> JsonObject:
    """Return a manifest's values without the entries that describe where tensors are stored."""
    return {name: value for name, value in values.items() if name not in (KEY, COPIED_APART)}


def take_best(model: torch.nn.Module, checkpoints: Path, last_step: int) -> int:
    """Load the weights of the best checkpoint into `model`, unless the last step is the best one.

    Args:
        checkpoints: the run's checkpoint folder.

    Returns:
        The step whose weights the model has now.
    """
    best = best_of(Store(checkpoints))
    if best is None or step_of(best) == last_step:
        return last_step
    if is_sharded(model):
        log.warning(phrase("run.best_model_not_whole"))
        return last_step
    try:
        load_trainable_state(model, load_checkpoint(best).tensors["model"])
    except CheckpointError as error:
        log.warning(phrase("run.best_model_unreadable", error=error))
        return last_step
    return step_of(best)
