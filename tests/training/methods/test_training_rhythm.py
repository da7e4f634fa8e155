"""When a Trainer of TRL is to evaluate and to save, and where its prompts go on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

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


def test_prompts_go_on_in_the_order_of_their_epoch() -> None:
    trl = pytest.importorskip("trl.trainer.utils")

    def sampler() -> Any:
        return trl.RepeatSampler(range(12), mini_repeat_count=1, batch_size=2, seed=3)

    undisturbed = sampler()
    epochs = [list(undisturbed) for _ in range(3)]
    assert epochs[0] != epochs[2]
    anew = sampler()
    loader = torch.utils.data.DataLoader(
        range(12),  # type: ignore[arg-type]
        batch_sampler=torch.utils.data.BatchSampler(anew, 2, drop_last=False),
    )
    state: Any = SimpleNamespace(global_step=2 * 3 + 1)  # in the third epoch of three steps each
    args: Any = SimpleNamespace(gradient_accumulation_steps=2)
    rhythm = training_rhythm(TrainingConfig(), holds_out=False)
    rhythm.on_train_begin(args, state, None, train_dataloader=loader)
    assert list(anew) == epochs[2]
