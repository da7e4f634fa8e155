"""When a Trainer of TRL is to evaluate and to save."""

from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.methods.training_rhythm import training_rhythm


def due(training: TrainingConfig, *, holds_out: bool = True) -> list[tuple[int, str]]:
    """What is due in a training of ten steps in epochs of four."""
    rhythm, wanted = training_rhythm(training, holds_out=holds_out), []
    for step in range(1, 11):
        control = SimpleNamespace(should_evaluate=False, should_save=False)
        state: Any = SimpleNamespace(global_step=step, max_steps=10, epoch=step / 4)
        rhythm.on_step_end(None, state, control)
        if step % 4 == 0:
            rhythm.on_epoch_end(None, state, control)
        wanted += [(step, "evaluate")] * control.should_evaluate + [
            (step, "save")
        ] * control.should_save
    return wanted


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [(4, "evaluate"), (4, "save"), (8, "evaluate"), (8, "save"), (10, "evaluate")]),
        (
            {"validation_interval": 2, "checkpoint_interval": None},
            [(8, "evaluate"), (10, "evaluate")],
        ),
        ({"validation_interval": None, "checkpoint_interval": 2}, [(8, "save"), (10, "evaluate")]),
        (
            {"validation_frequency": 6, "checkpoint_frequency": 5},
            [(5, "save"), (6, "evaluate"), (10, "evaluate"), (10, "save")],
        ),
    ],
)
def test_epochs_steps_and_the_end(
    settings: dict[str, Any], expected: list[tuple[int, str]]
) -> None:
    assert due(TrainingConfig(**settings)) == expected
    saves = [one for one in expected if one[1] == "save"]
    assert due(TrainingConfig(**settings), holds_out=False) == saves
