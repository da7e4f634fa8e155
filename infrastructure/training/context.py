"""A training as plain functions, for people who write their own loop.

    context = initialize_training(config)
    for epoch in range(context.num_epochs):
        context.start_epoch()
        for batch in context.pipeline:
            loss = context.trainer.train_step(batch)
            if should_checkpoint():
                context.save_state()
        context.end_epoch()

A batch is one optimizer step, whatever `gradient_accumulation` splits it into; the batches end
where `max_steps` says. `context.run()` is the whole training in the real loop, with its hooks.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.loading import load_config
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.loop import TrainingLoop, phase_ends, select_trainable
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.quantum.quantum_records import quantum_extension_of
from infrastructure.training.state import TrainingState
from infrastructure.training.trainer_factory import TrainerFactory


@dataclass
class EpochBatches:
    """Iterating gives the batches that are left of the current epoch, up to the last step."""

    loop: TrainingLoop
    state: TrainingState

    def __iter__(self) -> Iterator[Sequence[Any]]:
        position = self.state.position
        loop = self.loop
        if self._is_over():
            return
        batches = loop.data.train_batches(position.epoch, position.example, loop.batch_size)
        with closing(batches):  # a source may prepare batches in a thread
            for batch in batches:
                yield batch
                if self._is_over():
                    return

    def _is_over(self) -> bool:
        return self.state.stop_reason is not None or self.state.step >= self.loop.total_steps


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
        """Make ready to train what this epoch's phase trains; the position stays where it is."""
        state, loop = self.state, self.pipeline.loop
        state.model.train()
        if state.position.phase < len(loop.phases):
            state.phase = loop.phases[state.position.phase]
            select_trainable(state.model, state.phase, loop.optimizer)
        quantum_step = quantum_extension_of(loop.hooks.hooks)
        if quantum_step is not None:
            quantum_step.carry_out(state)

    def end_epoch(self) -> None:
        """Go to the beginning of the next epoch, and of the next phase where one is over."""
        position = self.state.position
        position.epoch += 1
        position.example = 0
        if position.epoch in phase_ends(self.pipeline.loop.phases):
            position.phase += 1

    def save_state(self) -> Path:
        """Write a checkpoint of this moment and return where it is."""
        return self.trainer.save_checkpoint(self.state)

    def run(self) -> TrainingState:
        """Train to the end in the training loop."""
        return self.trainer.train()


def initialize_training(config: DeploymentConfig | None = None, **options: Any) -> TrainingContext:
    """Build everything that `config` names.

    Args:
        config: None: what the configuration file and the environment say.
        options: EnhancedTrainer's keywords; without `checkpoint_directory`, checkpoints go to a
            folder of their own in the configuration's `output_dir`, made by the first one.

    Raises:
        ValueError: something in the configuration cannot be; says what and what to do.
    """
    config = load_config() if config is None else config
    options.setdefault("checkpoint_directory", _checkpoints_of(config))
    trainer = TrainerFactory().for_run(config, **options)
    loop = trainer.prepare()
    assert trainer.state is not None
    context = TrainingContext(trainer, EpochBatches(loop, trainer.state), trainer.adapter)
    context.start_epoch()
    return context


def _checkpoints_of(config: DeploymentConfig) -> Path:
    """Where nobody else's checkpoints lie: a place keeps the newest ones only."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-own-loop-{secrets.token_hex(2)}"
    return Path(config.output_dir) / name / "checkpoints"
