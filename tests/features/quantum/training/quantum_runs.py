"""Small real trainings with a quantum step, for tests of what it does to them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.quantum.config import AT_ANY_COST, QuantumConfig
from infrastructure.features.quantum.solving.quantum_step import Solution
from infrastructure.features.quantum.training import solver_session
from infrastructure.features.quantum.training.quantum_extension import QuantumExtension
from infrastructure.features.quantum.training.step_records import QuantumRecord
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook, Observer
from tests.training.small_runs import write_rows

NUM_ROWS = 22  # at most 20 to choose from: answered exactly, and at once


def quantum_trainer(
    model: Path,
    folder: Path,
    *,
    quantum: dict[str, Any] | None = None,
    lora: LoraConfig | None = None,
    checkpoints: Path | None = None,
    hooks: tuple[Hook, ...] = (),
    **settings: Any,
) -> EnhancedTrainer:
    """A trainer with the quantum step on.

    Args:
        quantum: of the section `quantum`.
        settings: of the section `training`.
    """
    data = folder / "rows.jsonl"
    if not data.exists():
        write_rows(folder, NUM_ROWS)
    values = {"batch_size": 4, "num_epochs": 2, "learning_rate": 1e-2, "warmup_steps": 1}
    values |= {"enabled_extensions": ["quantum"], "metrics_sinks": [], "checkpoint_seconds": None}
    return EnhancedTrainer(
        ModelConfig(name=str(model), lora_config=lora),
        TrainingConfig(**{**values, **settings}),
        DataConfig(path=str(data), max_length=128, num_workers=0, validation_split=0.2),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        # no clock decides in a test that is not about clocks
        sections={
            "quantum": QuantumConfig(**{"max_overhead_percent": AT_ANY_COST, **(quantum or {})})
        },
        checkpoint_directory=checkpoints,
        hooks=hooks,
    )


def extension_of(trainer: EnhancedTrainer) -> QuantumExtension:
    (found,) = [hook for hook in trainer.hooks.hooks if isinstance(hook, QuantumExtension)]
    return found


def records(trainer: EnhancedTrainer) -> list[QuantumRecord]:
    return extension_of(trainer).session.history.records()


def alternate_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each quantum step choose the next block, whatever its solver answers."""
    solve = solver_session.quantum_solve

    def solved(problem: Any, *given: Any, seed: int, **more: Any) -> Solution:
        chosen = [problem.labels[seed % len(problem.labels)]]
        return replace(solve(problem, *given, seed=seed, **more), decision=chosen)

    monkeypatch.setattr(solver_session, "quantum_solve", solved)


def weights(trainer: EnhancedTrainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def same_weights(left: EnhancedTrainer, right: EnhancedTrainer) -> bool:
    return all(
        torch.equal(one, other) for one, other in zip(weights(left), weights(right), strict=True)
    )


class StopAt(Observer):
    """Stops after a step, as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, state: TrainingState) -> None:
        if state.step >= self.step:
            state.stop("enough")


def without_times(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if "seconds" not in k and k != "info"} for r in found]
