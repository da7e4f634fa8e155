"""Trainings of a tiny model, with this process as rank 0."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory
from tests.training.small_runs import write_rows

NUM_ROWS = 34  # of 8 in a step: the last step of an epoch has 2


class Losses(Observer):
    """The loss of every step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def step_end(self, state: TrainingState) -> None:
        self.found.append(state.loss)


def small_config(folder: Path, model: Path, **settings: Any) -> DeploymentConfig:
    """Steps of 8 examples, in micro-batches of 2; `settings` are keywords of the configuration."""
    data = folder / "rows.jsonl"
    values: dict[str, Any] = {
        "model.name": str(model),
        "data.path": str(data if data.exists() else write_rows(folder, NUM_ROWS)),
        "data.max_length": 128,
        "data.num_workers": 0,
        "data.validation_split": 0.0,
        "training.batch_size": 2,
        "training.gradient_accumulation": 4,
        "training.max_steps": 20,
        "training.learning_rate": 1e-3,
        "training.warmup_steps": 1,
        "training.mixed_precision": False,
        "cache.directory": str(folder / "cache"),
        "device": "cpu",
    }
    return DeploymentConfig(**{**values, **settings})


def trained(
    config: DeploymentConfig,
    prepare: Callable[[EnhancedTrainer], None] = lambda trainer: None,
    **options: Any,
) -> tuple[list[float], EnhancedTrainer]:
    """Train to the end: the loss of each step, and the trainer."""
    losses = Losses()
    trainer = TrainerFactory().for_run(config, **options)
    trainer.add_hooks([losses])
    trainer.prepare()
    prepare(trainer)
    trainer.train()
    return losses.found, trainer


def weights_of(trainer: EnhancedTrainer) -> torch.Tensor:
    """Everything that was trained, in one row."""
    trained_ones = [p for p in trainer.model.parameters() if p.requires_grad]
    return torch.cat([p.detach().flatten() for p in trained_ones])
