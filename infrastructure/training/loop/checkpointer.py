"""Saving checkpoints during training, announcing committed ones, and rolling back."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.backup.state.random_state import capture_random
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import is_sharded
from infrastructure.models.trainable_state import own_part
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.history import HISTORY, History
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.checkpoints.snapshot import (
    Snapshot,
    restore_snapshot,
    take_snapshot,
)
from infrastructure.training.core.state import TrainingState
from infrastructure.training.distributed.checkpoint_storage import load_together, save_together
from infrastructure.training.distributed.group import Status
from infrastructure.training.extensions.extension_hooks import Event
from infrastructure.training.loop.optimizer_step import OptimizerStep
from infrastructure.training.recovery.save_retry import SaveRetryPolicy

LAST_KIND = "last"  # what rank 0 sends instead of its decision if it fails

log = logging.getLogger(__name__)


class Checkpointer:
    """The part of the training loop that saves and restores checkpoints.

    Args:
        manager: stores the checkpoints. None: none are saved.
        optimizer_step: has the objects whose state a checkpoint contains.
        identity: returns everything that determines the result, which every checkpoint contains.
        schedule: decides when a save is due by time, by request, or because the deadline is near.

    Attributes:
        failures: decides how many failed saves are tolerated.
        start_is_saved: the newest checkpoint already contains the state at the start.
        is_saving: a checkpoint is being taken right now.
        others_wait: the other ranks have finished the step and wait for rank 0's decision.
    """

    def __init__(
        self,
        manager: CheckpointManager | None,
        optimizer_step: OptimizerStep,
        identity: Callable[[], JsonObject],
        schedule: SaveSchedule,
    ) -> None:
        self.manager = manager
        self.optimizer_step = optimizer_step
        self.identity = identity
        self.schedule = schedule
        self.failures = SaveRetryPolicy()
        self.history: History = ()  # of what is saved from now on
        self.start_is_saved = False
        self.is_saving = False
        self.others_wait = False

    def snapshot(self, state: TrainingState) -> Snapshot:
        """Return everything needed to resume the training; see `checkpoints.snapshot`."""
        snapshot = take_snapshot(state, self.optimizer_step)
        if self.optimizer_step.group.is_first:
            snapshot.values["identity"] = self.identity()
            snapshot.values[HISTORY] = [*self.history]
        return snapshot

    def begin(self, state: TrainingState, kind: SaveKind) -> None:
        """Begin to write a checkpoint. Once it is committed, `collect` returns it.

        Raises:
            StorageError: the disk returned an error for this checkpoint, or for the one before it.
        """
        group = self.optimizer_step.group
        if not is_sharded(state.model):
            if self.manager is not None:
                self.manager.begin(self.snapshot(state), kind=kind, score=state.score)
        elif group.decide(lambda: self.manager is not None):
            save_together(
                group, self.manager, self.snapshot(state), state.model, kind=kind, score=state.score
            )

    def rescue(self, state: TrainingState, kind: SaveKind) -> None:
        """Write a last checkpoint from rank 0 when an error ends the run.

        If the model is sharded, the other ranks take part if they currently wait for rank 0;
        otherwise nothing is written.

        Raises:
            StorageError, ProcessLostError: the checkpoint cannot be written.
        """
        group = self.optimizer_step.group
        if is_sharded(state.model):
            if not self.others_wait:  # they are elsewhere: the last checkpoint remains
                return
            group.decide(lambda: {LAST_KIND: kind.value})
        self.begin(state, kind)
        self.announce(state, wait=True)

    def rescue_with_first(self, state: TrainingState, decided: JsonObject) -> None:
        """Write this rank's part of a last checkpoint, if rank 0 is ending because of an error.

        Called on ranks other than 0, while they wait for rank 0's decision.

        Raises:
            ProcessLostError: rank 0 has failed. The message says why.
        """
        if LAST_KIND not in decided:
            return
        self.begin(state, SaveKind(str(decided[LAST_KIND])))
        self.optimizer_step.group.decide(dict)

    def collect(self, wait: bool = False) -> list[Path]:
        """Return the checkpoints that were committed since the last call.

        Args:
            wait: wait for the checkpoint that is being written.
        """
        return [] if self.manager is None else self.manager.collect(wait)

    def save(self, state: TrainingState, kind: SaveKind) -> None:
        """Begin to write a checkpoint, after checking that the latest losses are finite.

        A few consecutive storage errors are tolerated.

        Raises:
            BadLossError: the losses are not finite.
            StorageError: the store has failed too often.
        """
        if self.manager is None and not is_sharded(state.model):
            return
        step = self.optimizer_step
        step.losses.check_sums(state)
        state.must_save = False
        started, self.is_saving = time.perf_counter(), True
        try:
            with self.failures.tolerated(state), self.optimizer_step.group.busy():
                self.begin(state, kind)
        finally:
            self.is_saving = False
        self.schedule.note_save(state.step, time.perf_counter() - started)

    def save_now(self, state: TrainingState) -> Path:
        """Write a checkpoint on request, and return its path.

        Raises:
            ValueError: there is no folder for checkpoints.
            OSError: the disk returns an error. Earlier checkpoints are untouched.
        """
        if self.manager is None:
            raise InputError("training.no_checkpoint_directory")
        return self.manager.save(self.snapshot(state), kind=SaveKind.MANUAL, score=state.score)

    def save_decision(self, state: TrainingState) -> None:
        """Save a decision at once, so that a run resumed after a kill makes the same decision."""
        self.optimizer_step.mark_safe(state)
        self.save(state, SaveKind.SCHEDULED)

    def keep_evidence(self, state: TrainingState) -> Path | None:
        """Save a bad state for inspection, and return its path.

        None if no checkpoints are saved, or if the model is sharded.

        Raises:
            StorageError: the disk returns an error.
        """
        if self.manager is None or is_sharded(state.model):  # the others do not take part
            return None
        return self.manager.save(self.snapshot(state), kind=SaveKind.EMERGENCY, healthy=False)

    def announce(self, state: TrainingState, wait: bool = False) -> None:
        """Fire CHECKPOINT_SAVED for each checkpoint that was committed since the last call.

        The event is not fired when a save begins, because that save may still fail.
        """
        committed: list[Path] = []
        with self.failures.tolerated(state), self.optimizer_step.group.busy():
            committed = self.collect(wait)
        for checkpoint in committed:
            self.failures.reset()
            state.checkpoint = checkpoint
            self.optimizer_step.hooks.fire(Event.CHECKPOINT_SAVED, state)

    def finish(self, state: TrainingState) -> None:
        """Wait for the last checkpoint. If saving it failed, try once more."""
        self.announce(state, wait=True)
        must_retry = bool(self.failures.count)
        if is_sharded(state.model):
            must_retry = self.optimizer_step.group.decide(lambda: must_retry)
        if must_retry:
            self.save(state, SaveKind.SCHEDULED)
            self.announce(state, wait=True)

    def roll_back(self, state: TrainingState) -> Path:
        """Restore the newest healthy, undamaged checkpoint with finite parameters.

        Checkpoints of later steps are skipped, because they were saved before an earlier rollback.

        Raises:
            CheckpointError: there is no such checkpoint. The state is unchanged.
        """
        if self.manager is None:
            raise CheckpointError("training.no_checkpoints_saved")
        for checkpoint in reversed(self.manager.checkpoints()):
            try:
                if step_of(checkpoint) > state.step or not self.manager.is_healthy(checkpoint):
                    continue
                snapshot = self._load(checkpoint, state)
            except CheckpointError as error:
                log.warning(
                    phrase(
                        "training.checkpoint_not_rolled_back_to",
                        checkpoint=checkpoint.stem[:12],
                        error=error,
                    )
                )
                continue
            self._end_search(state)
            restore_snapshot(snapshot, state, self.optimizer_step)
            return checkpoint
        self._end_search(state)
        raise CheckpointError(
            "training.no_checkpoint_to_roll_back_to", root=self.manager.store.root
        )

    def roll_back_with_first(self, state: TrainingState) -> None:
        """Restore this rank's parts of a sharded model when rank 0 rolls back.

        Called on ranks other than 0.
        """
        step = self.optimizer_step
        while step.group.decide(bool):
            with suppress(CheckpointError):  # rank 0 tries the one before it
                snapshot = self._load_part(None, state)
                snapshot.tensors["random"] = capture_random(step.device)
                restore_snapshot(snapshot, state, step)

    def _load(self, checkpoint: Path, state: TrainingState) -> Snapshot:
        if not is_sharded(state.model):
            snapshot = load_checkpoint(checkpoint)
            _refuse_not_finite(snapshot, state.model)
            return snapshot
        assert self.manager is not None
        self.manager.fetch_parts(checkpoint)
        self.optimizer_step.group.decide(lambda: True)
        return self._load_part(checkpoint, state)

    def _load_part(self, checkpoint: Path | None, state: TrainingState) -> Snapshot:
        """Load this rank's parts of a checkpoint. If any rank fails, all ranks raise."""
        group, reason = self.optimizer_step.group, ""
        snapshot = load_together(group, checkpoint, state.model, self.optimizer_step.optimizer)
        try:
            _refuse_not_finite(snapshot, state.model)
        except CheckpointError as error:
            reason = str(error)
        if group.agree(Status.NOT_FINITE if reason else Status.FINE, reason) is Status.NOT_FINITE:
            raise CheckpointError(group.reason)
        return snapshot

    def _end_search(self, state: TrainingState) -> None:
        if is_sharded(state.model):
            self.optimizer_step.group.decide(lambda: False)


def _refuse_not_finite(snapshot: Snapshot, model: torch.nn.Module) -> None:
    """Raise if a checkpoint contains parameters that are not finite.

    A step can make weights overflow although its own loss and gradient are finite; only the next
    loss is then bad. Buffers, such as an attention mask, may be infinite.
    """
    buffers = {name.replace("_orig_mod.", "") for name, _ in model.named_buffers()}
    for name, tensor in snapshot.tensors["model"].items():
        if name not in buffers and not bool(torch.isfinite(own_part(tensor)).all()):
            raise CheckpointError("training.tensor_not_finite", name=name)
