"""From a training that went wrong back to its newest good checkpoint, in the same process."""

import logging
from pathlib import Path

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.checkpoint_paths import step_of
from infrastructure.training.checkpoints.snapshot import (
    Participants,
    Snapshot,
    restore_snapshot,
)
from infrastructure.training.core.state import TrainingState

log = logging.getLogger(__name__)


def go_back(manager: CheckpointManager, state: TrainingState, parts: Participants) -> Path:
    """Restore the newest healthy checkpoint that verifies and holds finite parameters.

    Checkpoints of later steps are of another course of this run, and passed over.

    Raises:
        CheckpointError: there is none; the state is as it was.
    """
    for checkpoint in reversed(manager.checkpoints()):
        try:
            if step_of(checkpoint) > state.step or not manager.is_healthy(checkpoint):
                continue
            snapshot = load_checkpoint(checkpoint)
            _refuse_not_finite(snapshot, parts.model)
        except CheckpointError as error:
            log.warning("not going back to %s: %s", checkpoint.stem[:12], error)
            continue
        restore_snapshot(snapshot, state, parts)
        return checkpoint
    raise CheckpointError(f"no checkpoint in {manager.store.root} can be gone back to")


def _refuse_not_finite(snapshot: Snapshot, model: torch.nn.Module) -> None:
    """A step may overflow the weights with a loss and a gradient that were numbers still; the
    next loss tells. Buffers may be infinite, such as an attention mask."""
    buffers = {name.replace("_orig_mod.", "") for name, _ in model.named_buffers()}
    for name, tensor in snapshot.tensors["model"].items():
        if name not in buffers and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"its tensor {name} is not finite")
