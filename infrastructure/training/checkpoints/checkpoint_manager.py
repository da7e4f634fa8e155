"""The checkpoints of a run: versions in the store of its directory. See backup/FORMAT.md.

A checkpoint is named by the path of its manifest. Reading verifies; a damaged checkpoint is passed
over with a warning and the one before it serves.
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
from infrastructure.run.checkpoint_paths import store_of
from infrastructure.training.checkpoints.chunked_version import KEY, tensors_of
from infrastructure.training.checkpoints.snapshot import Snapshot, VersionFacts

# Smaller ones are written in less time than a helper takes to begin.
BACKGROUND_BYTES = 32 * 1024**2
DEFAULT_RETENTION = Retention()

log = logging.getLogger(__name__)


class CheckpointManager:
    """Saves, lists, verifies, loads and prunes the checkpoints of one run.

    Args:
        directory: the run's `checkpoints` folder.
        retention: what rotation leaves.
        run_files: gives what else is kept in every checkpoint; see `backup.run_files`.
        compress: write objects compressed, where that is smaller.

    Attributes:
        apart: gives the place where other machines put what they hold of a version; None: none.
    """

    def __init__(
        self,
        directory: Path,
        retention: Retention = DEFAULT_RETENTION,
        run_files: Callable[[], Mapping[str, TensorBytes]] = dict,
        *,
        compress: bool = False,
    ) -> None:
        self.store = Store(directory, compress=compress)
        self.compress = compress
        self.retention = retention
        self.run_files = run_files
        self.apart: Callable[[], ApartSettings | None] = lambda: None
        self._writer: BackgroundWriter | None = None
        self._committed: list[str] = []

    def save(self, snapshot: Snapshot, **facts: Unpack[VersionFacts]) -> Path:
        """Write a checkpoint, then remove those that rotation no longer keeps.

        Args:
            facts: kind, healthy and score, as in `Store.commit`.

        Raises:
            StorageError: the disk refuses; what was saved before is untouched.
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
        """As `save`, but a large one is only copied now, and written while the caller goes on.
        `collect` tells when it is committed.

        Raises:
            StorageError: as `save`, or the one before this could not be written.
        """
        self._take_in(wait=True)
        state = self._state(snapshot)
        if size_of_state(state) < BACKGROUND_BYTES:
            self._committed.append(self._save(as_bytes(state), snapshot, facts).stem)
            return
        if self._writer is None:
            self._writer = BackgroundWriter(self.store.root, self.retention, compress=self.compress)
        self._writer.begin(state, snapshot.values, step=snapshot.values["step"], **facts)

    def _state(self, snapshot: Snapshot) -> State:
        return {**by_full_name(snapshot), **self.files()}

    def files(self) -> Mapping[str, TensorBytes]:
        """What else every checkpoint holds; nothing where it cannot be read."""
        try:
            return self.run_files()
        except OSError as error:  # they are not what a training goes on from
            log.warning(phrase("run.run_files_not_in_checkpoint", error=error))
            return {}

    def note_committed(self, name: str) -> None:
        """A version that several ranks have written; `collect` gives it."""
        self._committed.append(name)

    def write_by_parts(
        self, values: dict[str, Any], **facts: Unpack[VersionFacts]
    ) -> "PartwiseCheckpoint":
        """As `save`, of a state that comes a few tensors at a time."""
        self._take_in(wait=True)
        return PartwiseCheckpoint(self, values, facts)

    def collect(self, wait: bool = False) -> list[Path]:
        """The checkpoints begun that have been committed since the last call.

        Raises:
            StorageError: one could not be written; what was saved before is untouched.
        """
        self._take_in(wait)
        committed, self._committed = self._committed, []
        return [self.store.manifest_path(name) for name in committed]

    def close(self) -> None:
        """Finish what is being written, and end the helper that writes it."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def only_writer(self) -> AbstractContextManager[None]:
        """Inside, nobody else writes: the helper has the store's lock while there is one, and this
        process through it."""
        return nullcontext() if self._writer is not None else only_writer(self.store.root)

    def _take_in(self, wait: bool) -> None:
        name = self._writer.collect(wait) if self._writer else None
        if name is not None:
            self._committed.append(name)

    def checkpoints(self) -> list[Path]:
        """All checkpoints, the oldest first, verified or not."""
        return [self.store.manifest_path(name) for name in reversed(self.store.versions())]

    def is_healthy(self, checkpoint: Path) -> bool:
        """Whether a training may go on from it, damage aside.

        Raises:
            CheckpointError: its manifest is damaged.
        """
        return self.store.outline(checkpoint.stem).healthy

    def fetch_parts(self, checkpoint: Path) -> None:
        """Bring here what other machines have written of a checkpoint to the place of its copies.

        Raises:
            CheckpointError: they cannot be had.
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
        """The newest healthy checkpoint that verifies; damaged newer ones are named in a warning.

        Waits for what the helper of a killed training is still writing.

        Raises:
            CheckpointError: there is none.
        """
        with self.only_writer():
            name, rejected = self.store.newest()
        damage = [f"{version.name[:12]}: {version.reason}" for version in rejected]
        for text in damage:
            log.warning("skipping a damaged checkpoint: %s", text)
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
    """A checkpoint that is never in memory as a whole. The first error is kept until `commit`, so
    that whoever brings the parts brings them all."""

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
        """Write some of the tensors."""
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
        """Make it a version, which `collect` of the manager gives.

        Raises:
            StorageError: the disk has refused a part of it; no version was made.
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
    """A snapshot's tensors by their full names."""
    return {
        f"{group}/{name}": tensor
        for group, members in snapshot.tensors.items()
        for name, tensor in members.items()
    }


def as_bytes(state: State) -> dict[str, TensorBytes]:
    """`state` in memory that it shares where it is on the CPU."""
    return {
        name: tensor if isinstance(tensor, TensorBytes) else to_bytes(tensor)
        for name, tensor in state.items()
    }


def load_values(checkpoint: Path) -> Snapshot:
    """A checkpoint without its tensors.

    Raises:
        CheckpointError: its manifest is damaged.
    """
    manifest = store_of(checkpoint).read(checkpoint.stem)
    return Snapshot({}, own_values(manifest.values))


def load_checkpoint(checkpoint: Path) -> Snapshot:
    """Read a checkpoint, each part verified before it is used; tensors are on the CPU.

    Raises:
        CheckpointError: it is damaged.
    """
    store = store_of(checkpoint)
    manifest = store.read(checkpoint.stem)
    return Snapshot(tensors_of(store, manifest), own_values(manifest.values))


def own_values(values: JsonObject) -> JsonObject:
    """The values of a training in those of a version, which say also where its tensors lie."""
    return {name: value for name, value in values.items() if name not in (KEY, COPIED_APART)}
