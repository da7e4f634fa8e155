"""Loading of the best checkpoint's weights into a model whose training has ended."""

import logging
from pathlib import Path

import torch

from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import is_sharded
from infrastructure.models.trainable_state import load_trainable_state
from infrastructure.run.checkpoint_paths import best_of, step_of
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint

log = logging.getLogger(__name__)


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
