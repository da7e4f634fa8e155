"""Checks while a training goes on: at their time, seen when they fail, and without a trace."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.testing.check_observer import CheckObserver
from infrastructure.testing.results import CheckResult
from infrastructure.training.checkpoints.snapshot import take_snapshot
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from tests.testing.check_models import save_model_of, settings_of, trainer_of

Rounds = list[tuple[int, list[CheckResult]]]


class Clock:
    """Ten seconds pass with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10
        return self.now


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With dropout, so that each drawn random number counts."""
    return save_model_of("gpt2", tmp_path_factory.mktemp("model"))


def train(model: Path, folder: Path, interval_seconds: float | None, *hooks: Observer) -> Any:
    config = DeploymentConfig(**settings_of(folder, {"name": str(model)}, max_steps=6))
    trainer: EnhancedTrainer = trainer_of(config)
    rounds: Rounds = []
    trainer.add_hooks(hooks)
    if interval_seconds is not None:

        def take(step: int, results: list[CheckResult]) -> None:
            rounds.append((step, results))

        trainer.add_hooks([CheckObserver(trainer, interval_seconds, take, Clock())])
    trainer.train()
    assert trainer.state is not None
    assert trainer.prepare().optimizer_step is not None
    return take_snapshot(trainer.state, trainer.prepare().optimizer_step), rounds


def test_a_checked_training_comes_to_the_same_bits(gpt2: Path, tmp_path: Path) -> None:
    plain, none = train(gpt2, tmp_path / "plain", None)
    checked, rounds = train(gpt2, tmp_path / "checked", 1.0)
    assert none == []
    steps = plain.values["step"]
    assert [step for step, _ in rounds] == list(range(1, steps + 1))
    assert [r for _, results in rounds for r in results if r.status == "fail"] == []
    for group, members in plain.tensors.items():
        for name, tensor in members.items():
            assert torch.equal(tensor, checked.tensors[group][name]), f"{group}/{name}"
    assert plain.values["loss"] == checked.values["loss"]
    assert plain.values["scheduler"] == checked.values["scheduler"]


def test_a_round_comes_when_its_time_has_come(gpt2: Path, tmp_path: Path) -> None:
    """The clock goes on by 10 s a look: one at each step, and one after each round."""
    _, rounds = train(gpt2, tmp_path, 25.0)
    assert [step for step, _ in rounds] == [3, 6]


class BreaksAt(Observer):
    """Makes one weight infinite, as a bad memory cell might."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, state: TrainingState) -> None:
        if state.step == self.step:
            with torch.no_grad():
                model: Any = state.model
                model.transformer.wpe.weight[-1, 0] = float("inf")


def test_what_goes_wrong_in_the_middle_is_seen_and_the_training_goes_on(
    gpt2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        snapshot, rounds = train(gpt2, tmp_path, 1.0, BreaksAt(3))
    assert snapshot.values["step"] == 6
    failed = {step: {r.name for r in rs if r.status == "fail"} for step, rs in rounds}
    assert failed[2] == set()
    assert all("weights" in failed[step] for step in range(3, 7))
    assert "testing.checks_failed_at_step(step=3, " in caplog.text
    assert "testing.weights_not_finite(names=transformer.wpe.weight)" in caplog.text
