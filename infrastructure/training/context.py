"""A training as plain functions, for people who write their own loop.

    context = initialize_training(config)
    for epoch in range(context.num_epochs):
        context.start_epoch()
        for batch in context.pipeline:
            loss = context.trainer.train_step(batch)
            if should_checkpoint():
                context.save_state()
        context.end_epoch()

It only calls the parts; `context.run()` is the whole training in the real loop, with its hooks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.state import TrainingState
from infrastructure.training.trainer_factory import TrainerFactory


@dataclass
class EpochBatches:
    """Iterating gives the batches that are left of the current epoch."""

    data: DataSource
    state: TrainingState
    batch_size: int

    def __iter__(self) -> Iterator[Sequence[Any]]:
        position = self.state.position
        yield from self.data.train_batches(position.epoch, position.example, self.batch_size)


@dataclass
class TrainingContext:
    """The parts of one training: trainer, pipeline (batches) and manager (the model's adapter)."""

    trainer: EnhancedTrainer
    pipeline: EpochBatches
    manager: ModelAdapter

    @property
    def state(self) -> TrainingState:
        return self.pipeline.state

    @property
    def num_epochs(self) -> int:
        return sum(phase.num_epochs for phase in self.trainer.prepare().phases)

    def start_epoch(self) -> None:
        """Make the model ready to train; the position stays where it is."""
        self.state.model.train()

    def end_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.state.position.epoch += 1
        self.state.position.example = 0

    def save_state(self) -> Path:
        """Write a checkpoint of this moment and return where it is."""
        return self.trainer.save_checkpoint(self.state)

    def run(self) -> TrainingState:
        """Train to the end in the training loop."""
        return self.trainer.train()


def initialize_training(config: DeploymentConfig, **options: Any) -> TrainingContext:
    """Build everything that `config` names; `options` are EnhancedTrainer's keywords.

    Raises:
        ValueError: something in the configuration cannot be; says what and what to do.
    """
    trainer = TrainerFactory().for_run(config, **options)
    loop = trainer.prepare()
    assert trainer.state is not None
    batches = EpochBatches(loop.data, trainer.state, loop.batch_size)
    return TrainingContext(trainer, batches, trainer.adapter)
