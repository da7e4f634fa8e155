"""The choice of when to save checkpoints of a Trainer, and handling of disks that fail."""

import time
from collections.abc import Callable
from pathlib import Path

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.core.errors import CheckpointError, TrainingDivergedError
from infrastructure.core.messages import phrase
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import TrainingState
from infrastructure.training.hf_bridge.trainer_state import has_finite_weights
from infrastructure.training.recovery.save_retry import SaveRetryPolicy


class SaveTiming:
    """A writer of the due checkpoints of one call of `Trainer.train`.

    A due checkpoint is written as soon as its step is completely done, including the evaluation;
    see `TrainerEvents`.

    Args:
        take: returns a snapshot that shares memory with the training; its argument is whether the
            training is finished.
        announce: called with each committed checkpoint.
        first: the checkpoint from which the run resumes.

    Attributes:
        first: the checkpoint from which the run resumed, or else the first one that it wrote.
        is_ending: the checkpoint that is due is the last one.
    """

    def __init__(
        self,
        versions: CheckpointManager,
        schedule: SaveSchedule,
        failures: SaveRetryPolicy,
        take: Callable[[bool], Snapshot],
        announce: Callable[[Path], None],
        first: Path | None = None,
    ) -> None:
        self.versions, self.schedule, self.failures = versions, schedule, failures
        self.take, self.announce, self.first = take, announce, first
        self.due: SaveKind | None = None
        self.is_ending = False
        self._newest = first

    @property
    def kept_step(self) -> int:
        """The step of the newest committed checkpoint; 0 if there is none, -1 if it is
        unreadable.
        """
        try:
            return 0 if self._newest is None else step_of(self._newest)
        except (CheckpointError, OSError):
            return -1

    def request(self, kind: SaveKind) -> None:
        """Mark a checkpoint as due. If one is already due, its kind is unchanged."""
        self.due = self.due or kind

    def request_by_clock(self, step: int) -> None:
        """Mark a checkpoint as due if the schedule requires one or if a failed save must be
        repeated.
        """
        kind = self.schedule.kind_due(step)
        if kind is not None or self.failures.is_retry_due:
            self.request(kind or SaveKind.SCHEDULED)

    def save(self, state: TrainingState) -> None:
        """Write the checkpoint that is due, if any; a large one in the background.

        Raises:
            TrainingDivergedError: the weights are no longer finite. They are saved for inspection,
                but never resumed from.
            StorageError: the disk has failed too often.
        """
        kind, self.due = self.due, None
        if kind is None:
            return
        started = time.perf_counter()
        snapshot = self.take(self.is_ending and not state.is_cut_short)
        if not has_finite_weights(snapshot):
            raise self._diverged(state, snapshot)
        with self.failures.tolerated(state):
            self.versions.begin(snapshot, kind=kind, score=state.score)
        self.schedule.note_save(state.step, time.perf_counter() - started)

    def _diverged(self, state: TrainingState, snapshot: Snapshot) -> TrainingDivergedError:
        with self.failures.tolerated(state):
            self.versions.save(snapshot, kind=SaveKind.EMERGENCY, healthy=False)
        newest = step_of(self.versions.newest())
        return TrainingDivergedError(
            phrase("trainer.weights_not_finite", step=state.step, newest=newest)
        )

    def collect(self, state: TrainingState, wait: bool = False) -> None:
        """Announce checkpoints that were committed since the last call.

        A checkpoint is not announced before it is committed, because writing it may fail.
        """
        committed: list[Path] = []
        with self.failures.tolerated(state):
            committed = self.versions.collect(wait)
        for checkpoint in committed:
            self.failures.reset()
            self.first = self.first or checkpoint
            self._newest = checkpoint
            self.announce(checkpoint)

    def finish(self, state: TrainingState) -> None:
        """Wait until the current write ends. If saving a checkpoint failed, try once more."""
        self.collect(state, wait=True)
        if self.failures.count:
            self.request(SaveKind.SCHEDULED)
            self.save(state)
            self.collect(state, wait=True)
