"""Saves one training, and takes it back to what was saved."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.going_back import go_back
from infrastructure.training.checkpoints.snapshot import Participants, Snapshot, take_snapshot
from infrastructure.training.core.state import TrainingState


@dataclass
class TrainingSaver:
    """What the loop saves with.

    Attributes:
        identity: gives what decides the result, which every checkpoint holds.
    """

    manager: CheckpointManager
    parts: Participants
    identity: Callable[[], dict[str, Any]]

    def save(self, state: TrainingState) -> Path:
        """Write a checkpoint that somebody asked for.

        Raises:
            OSError: the disk refuses; earlier checkpoints are untouched.
        """
        return self.manager.save(self._snapshot(state), kind="manual", score=state.score)

    def begin(self, state: TrainingState, kind: str) -> None:
        """Begin to write one; it counts when `manager.collect` gives it."""
        self.manager.begin(self._snapshot(state), kind=kind, score=state.score)

    def keep_evidence(self, state: TrainingState) -> Path:
        """Write a state that is not good, for people to look at."""
        return self.manager.save(self._snapshot(state), kind="emergency", healthy=False)

    def go_back(self, state: TrainingState) -> Path:
        """Restore the newest good checkpoint; see `going_back`."""
        return go_back(self.manager, state, self.parts)

    def _snapshot(self, state: TrainingState) -> Snapshot:
        snapshot = take_snapshot(state, self.parts)
        snapshot.values["identity"] = self.identity()
        return snapshot
