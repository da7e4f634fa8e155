"""Which weights the finished model has: of its last step, or of the best checkpoint."""

from pathlib import Path

import pytest
import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.models.model_inputs import IN_FORWARD
from infrastructure.run.checkpoint_paths import best_of
from infrastructure.training.checkpoints.best_weights import take_best
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.snapshot import Snapshot

LAST_STEP, OF_THE_LAST = 6, -1.0


def model_of(value: float) -> torch.nn.Module:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def checkpoints_in(folder: Path, scores: dict[int, float | None]) -> Path:
    """A checkpoint of each step, whose weights are its number."""
    manager = CheckpointManager(folder, Retention(9))
    for step, score in scores.items():
        tensors = {"model": model_of(step).state_dict()}
        manager.save(Snapshot(tensors, {"step": step}), score=score)
    return folder


@pytest.mark.parametrize(
    ("scores", "step"),
    [
        ({}, LAST_STEP),
        ({2: None, 4: None}, LAST_STEP),  # nothing was measured
        ({2: 0.5, 4: 0.25, 6: 0.75}, 4),
        ({2: 0.25, 4: 0.5, 6: None}, 2),
        ({2: 0.5, 4: 0.75, 6: 0.25}, LAST_STEP),
    ],
)
def test_the_finished_model_is_the_best_one_where_something_was_measured(
    tmp_path: Path, scores: dict[int, float | None], step: int
) -> None:
    model = model_of(OF_THE_LAST)
    assert take_best(model, checkpoints_in(tmp_path, scores), LAST_STEP) == step
    expected = OF_THE_LAST if step == LAST_STEP else float(step)
    assert {x for p in model.parameters() for x in p.flatten().tolist()} == {expected}


def test_what_cannot_be_taken_leaves_the_last_weights(tmp_path: Path) -> None:
    """No rank of a model that is spread holds all of it; a damaged checkpoint holds nothing."""
    checkpoints = checkpoints_in(tmp_path, {2: 0.25, 4: 0.5})
    model = model_of(OF_THE_LAST)
    setattr(model, IN_FORWARD, None)
    assert take_best(model, checkpoints, LAST_STEP) == LAST_STEP
    delattr(model, IN_FORWARD)
    store = CheckpointManager(checkpoints).store
    best = best_of(store)
    assert best is not None
    for pack in store.read(best.stem).packs:
        store.objects.path_of(pack.hash).unlink()
    assert take_best(model, checkpoints, LAST_STEP) == LAST_STEP
    assert {x for p in model.parameters() for x in p.flatten().tolist()} == {OF_THE_LAST}
