"""Stack-wise training through the deployment: a unit after the other, or all at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.training_config import TrainingConfig
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.stackwise.rack import Rack
from infrastructure.training.stackwise.stack_phases import divide, plan_stacks
from infrastructure.training.strategies.stackwise_strategy import StackwiseStrategy
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import deploy, losses, small_settings
from tests.training.models.architectures import tiny_model

LAYERS = 4
STEPS = 6  # of an epoch


def config_of(folder: Path, **training: Any) -> DeploymentConfig:
    """A small training of `LAYERS` layers, one epoch in each phase."""
    settings = small_settings(folder, **{"num_epochs": 1, **training})
    settings["model"]["embedded"]["num_layers"] = LAYERS
    return DeploymentConfig(**settings)


def train(folder: Path, name: str, **training: Any) -> Path:
    config = config_of(folder, **training)
    config.output_dir = str(folder / name)
    return deploy(config)[0]


def weights_after(run: Path, step: int) -> dict[str, torch.Tensor]:
    """The model of a checkpoint."""
    [path] = [
        path
        for path in CheckpointManager(run / "checkpoints").checkpoints()
        if load_checkpoint(path).values["step"] == step
    ]
    return load_checkpoint(path).tensors["model"]


SEQUENTIAL: dict[str, dict[str, Any]] = {
    "progressive": {"strategy": "progressive", "progressive": {"target_stacks": 2}},
    "layerwise": {"mode": "layerwise"},
    "blockwise": {"mode": "blockwise", "block_size": 2},
    "fused": {"mode": "fused", "block_size": 2},
    "with_top": {"mode": "blockwise", "block_size": 2, "with_top": 1},
    "reconstruct": {"mode": "blockwise", "block_size": 2, "local_loss": "reconstruct"},
}
AT_ONCE: dict[str, dict[str, Any]] = {
    "stackwise": {"strategy": "end_to_end", "end_to_end_scope": "stackwise"},
    "lopt": {
        "strategy": "end_to_end",
        "end_to_end_scope": "stackwise",
        "progressive": {"target_stacks": 2},
        "local_loss": "reconstruct",
    },
    "rackwise": {"strategy": "end_to_end"},
}


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_a_unit_trains_in_its_phase_and_stays_as_it_is_afterwards(
    name: str, tmp_path: Path
) -> None:
    """Also the one that is unfrozen last really moves."""
    run = train(tmp_path, "runs", **SEQUENTIAL[name])
    size = 1 if name == "layerwise" else 2
    num_phases = LAYERS // size
    assert len(losses(run)) == num_phases * STEPS
    for phase in range(num_phases):
        before = weights_after(run, phase * STEPS)
        after = weights_after(run, (phase + 1) * STEPS)
        moved = {
            int(key.split("layers.")[1].split(".")[0])
            for key in after
            if "layers." in key and not torch.equal(before[key], after[key])
        }
        top = {LAYERS - 2, LAYERS - 1} if name == "with_top" else set()
        assert moved == set(range(phase * size, (phase + 1) * size)) | top
        embedding = "model.embed_tokens.weight"
        assert torch.equal(before[embedding], after[embedding]) == (phase > 0)


@pytest.mark.parametrize("name", AT_ONCE)
def test_all_units_train_in_every_step(name: str, tmp_path: Path) -> None:
    run = train(tmp_path, "runs", **AT_ONCE[name])
    before, after = weights_after(run, 1), weights_after(run, 2)
    still = [key for key in after if torch.equal(before[key], after[key])]
    assert still == []


def test_layerwise_is_blockwise_of_one(tmp_path: Path) -> None:
    one = train(tmp_path, "layerwise", mode="layerwise")
    other = train(tmp_path, "blockwise", mode="blockwise", block_size=1)
    assert losses(one) == losses(other)


def test_a_fused_frozen_prefix_is_blockwise(tmp_path: Path) -> None:
    one = train(tmp_path, "fused", mode="fused", block_size=2)
    other = train(tmp_path, "blockwise", mode="blockwise", block_size=2)
    assert [loss for _, loss in losses(one)] == pytest.approx(
        [loss for _, loss in losses(other)], rel=1e-5
    )


def test_rackwise_is_ordinary_training(tmp_path: Path) -> None:
    one = train(tmp_path, "rackwise", strategy="end_to_end", end_to_end_scope="rackwise")
    other = train(tmp_path, "standard", strategy="standard")
    assert losses(one) == losses(other)


def test_one_stack_is_ordinary_training(tmp_path: Path) -> None:
    one = train(tmp_path, "one", strategy="progressive", progressive={"target_stacks": 1})
    other = train(tmp_path, "standard", strategy="standard")
    assert losses(one) == losses(other)


def test_a_silent_new_stack_begins_where_the_one_below_ended(tmp_path: Path) -> None:
    """And gradients reach it: it learns."""
    shape = {"target_stacks": 2, "init": "zero"}
    config = config_of(tmp_path, strategy="progressive", progressive=shape)
    trainer = TrainerFactory().for_run(config)
    loop, strategy = trainer.prepare(), trainer.strategy
    assert isinstance(strategy, StackwiseStrategy)
    assert trainer.model is not None
    strategy.enter_phase(trainer.model, loop.optimizer, 0)
    below = trainer.evaluate()
    strategy.enter_phase(trainer.model, loop.optimizer, 1)
    assert trainer.evaluate() == pytest.approx(below, abs=1e-6)


@pytest.mark.parametrize("name", [*SEQUENTIAL, *AT_ONCE, "once"])
def test_a_run_that_is_broken_off_comes_to_the_same_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the second phase, and from the checkpoint at its beginning."""
    once = {"strategy": "progressive", "progressive": {"growth": "once", "init": "middle"}}
    settings = {**SEQUENTIAL, **AT_ONCE, "once": once}[name]
    whole = train(tmp_path, "whole", **settings)
    last = len(losses(whole))
    for step in sorted({STEPS, last - 2} - {last}):
        checkpoint = [
            path
            for path in CheckpointManager(whole / "checkpoints").checkpoints()
            if load_checkpoint(path).values["step"] == step
        ]
        trainer = TrainerFactory().for_run(config_of(tmp_path, **settings))
        trainer.restore(checkpoint[0])
        state = trainer.train()
        assert state.step == last
        end = weights_after(whole, last)
        model = dict(trainer.model.state_dict())  # type: ignore[union-attr]
        assert [key for key in end if not torch.equal(end[key], model[key])] == []


def test_optimizer_memory_is_that_of_the_unit_that_trains(tmp_path: Path) -> None:
    run = train(tmp_path, "runs", mode="layerwise")
    [path] = CheckpointManager(run / "checkpoints").checkpoints()[-1:]
    values = load_checkpoint(path)
    held = sum(t.numel() for name, t in values.tensors["optimizer"].items() if "exp_avg" in name)
    model = values.tensors["model"]
    top = sum(t.numel() for key, t in model.items() if f"layers.{LAYERS - 1}." in key)
    assert held == 2 * top


@pytest.mark.parametrize(
    ("training", "sizes"),
    [
        ({"mode": "layerwise"}, [1] * 7),
        ({"mode": "blockwise", "block_size": 3}, [3, 3, 1]),
        ({"strategy": "progressive", "progressive": {"target_stacks": 3}}, [2, 2, 3]),
        (
            {"strategy": "progressive", "progressive": {"target_stacks": 3, "growth": "once"}},
            [2, 5],
        ),
    ],
)
def test_layers_are_divided(training: dict[str, Any], sizes: list[int]) -> None:
    units = divide(7, TrainingConfig(**training))
    assert [unit.last - unit.first for unit in units] == sizes
    assert [unit.first for unit in units] == [sum(sizes[:index]) for index in range(len(sizes))]


def test_more_stacks_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="the model has 3 layers; give at most 3"):
        divide(3, TrainingConfig(strategy="progressive"))


def test_masks_of_the_depth_go_from_the_first_bin_to_the_last() -> None:
    config = TrainingConfig(
        strategy="progressive",
        progressive={"target_stacks": 4},
        time_step_masking=True,
        time_step_bins=[1, 3, 5, 9],
    )
    rack = Rack(tiny_model("llama", num_hidden_layers=4))
    assert [phase.time_step for phase in plan_stacks(config, rack, 1).phases] == [1, 3, 5, 9]


def test_each_phase_warms_up_and_falls_anew(tmp_path: Path) -> None:
    run = train(tmp_path, "runs", mode="blockwise", block_size=2, warmup_steps=2)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [r["learning_rate"] for r in records if "loss" in r and "learning_rate" in r]
    assert rates[: STEPS - 1] == pytest.approx(rates[STEPS:-1])  # each is of the step after it
    assert rates[0] < rates[1] > rates[STEPS - 2]
