"""The number format is measured where it is open and worth it, and kept by whoever goes on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core.errors import CheckpointError
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core import precision
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.setup import precision_choice
from infrastructure.training.setup.precision_choice import PrecisionChoice, choose_measured
from infrastructure.training.sizing.dry_run import DryRunStep, MicroCost
from tests.training.small_runs import small_trainer

MakeTrainer = Callable[..., EnhancedTrainer]


@pytest.fixture
def make(saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    """Trainers on a CPU with bf16 instructions, for which few micro-batches are enough."""
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(precision_choice, "WORTH_IT", 4)
    return lambda **training: small_trainer(saved_llama, tmp_path, **{"max_steps": 4, **training})


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[str]]:
    """Have a micro-batch take a second in bf16, and so many in fp32; in which formats some were."""

    def planted(fp32_seconds: float) -> list[str]:
        measured: list[str] = []

        def micro_batch(step: DryRunStep, examples: Sequence[object]) -> MicroCost:
            name = step.strategy.precision.name
            first = 100.0 if name not in measured else 0.0  # loads kernels
            measured.append(name)
            return MicroCost(1, first + {"bf16": 1.0, "fp32": fp32_seconds}[name], 1)

        monkeypatch.setattr(DryRunStep, "micro_batch", micro_batch)
        return measured

    return planted


def test_fp32_has_to_be_clearly_faster(
    make: MakeTrainer, plant: Callable[[float], list[str]]
) -> None:
    measured = plant(0.91)
    trainer = make()
    choice = choose_measured(trainer)
    assert choice is not None
    assert (choice.name, choice.lines()) == ("bf16", [])
    assert trainer.precision.name == trainer.strategy.precision.name == "bf16"
    assert measured == ["bf16", "fp32"] * 4
    plant(0.89)
    choice = choose_measured(trainer)
    assert choice is not None
    for chosen in (
        choice,
        trainer.precision,
        trainer.strategy.precision,
        trainer.planner.precision,
    ):
        assert chosen.name == "fp32"
    origin = "measured on this machine: a forward and backward pass takes bf16 1 s, fp32 0.89 s"
    assert choice.decided() == {"training.mixed_precision": {"value": "fp32", "origin": origin}}
    assert choice.lines() == [f"training.mixed_precision: fp32 ({origin})"]


@pytest.mark.parametrize(
    "training",
    [{"mixed_precision": "bf16"}, {"compile_mode": "default"}, {"max_steps": 3}],
)
def test_a_given_format_and_short_trainings_are_not_measured(
    make: MakeTrainer, plant: Callable[[float], list[str]], training: dict[str, Any]
) -> None:
    measured = plant(0.5)
    assert choose_measured(make(**training)) is None
    assert measured == []


def test_a_run_goes_on_in_the_format_that_it_began_with(
    make: MakeTrainer,
    plant: Callable[[float], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(PrecisionChoice, "name", "fp32")
        trainer = make(checkpoint_frequency=2)
        choose_measured(trainer)
    trainer.save_checkpoints_to(tmp_path / "checkpoints")
    trainer.train()
    checkpoint = CheckpointManager(tmp_path / "checkpoints").newest()
    again = make(checkpoint_frequency=2)
    again.restore(checkpoint)
    assert again.precision.name == again.prepare().optimizer_step.strategy.precision.name == "fp32"
    given = make(checkpoint_frequency=2, mixed_precision="bf16")
    with pytest.raises(CheckpointError, match="--mixed-precision fp32 for the precision"):
        given.restore(checkpoint)


def test_a_cpu_without_bf16_does_not_go_on_in_bf16(
    make: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(checkpoint_frequency=2)
    trainer.save_checkpoints_to(tmp_path / "checkpoints")
    trainer.train()
    checkpoint = CheckpointManager(tmp_path / "checkpoints").newest()
    monkeypatch.setattr(precision, "best_precision", lambda device: "fp32")
    with pytest.raises(CheckpointError, match="precision: was bf16, is fp32"):
        make(checkpoint_frequency=2).restore(checkpoint)
