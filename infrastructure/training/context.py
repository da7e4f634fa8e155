"""A training as plain functions, for people who write their own loop.

    context = initialize_training(config)
    for epoch in range(config.num_epochs):
        context.start_epoch()
        for batch in context.pipeline:
            loss = context.trainer.train_step(batch)
            if should_checkpoint():
                context.save_state()
        context.end_epoch()

The parts may be made one by one, too, from one whole configuration:

    trainer, pipeline, manager = UnslothTrainer(config), DataPipeline(config), ModelManager(config)
    trainer.prepare()
    context = TrainingContext(trainer, pipeline, manager)

A batch is one optimizer step, whatever `gradient_accumulation` splits it into; the batches end
where `max_steps` says. `context.run()` is the whole training in the real loop, with its hooks.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.errors import InputError
from infrastructure.training.core.state import TrainingState
from infrastructure.training.data.data_pipeline import DataPipeline
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.loop.loop import TrainingLoop, phase_ends, select_trainable
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.quantum.own_loop import own_loop, remember_own_loop
from infrastructure.training.quantum.records_observer import quantum_extension_of
from infrastructure.training.trainer_factory import TrainerFactory
from infrastructure.training.unsloth_trainer import own_loop_checkpoints
from infrastructure.training.whole_config import ModelManager

log = logging.getLogger(__name__)


@dataclass
class EpochBatches:
    """Iterating gives the batches that are left of the current epoch, up to the last step."""

    loop: TrainingLoop
    state: TrainingState

    def __iter__(self) -> Iterator[Sequence[object]]:
        position = self.state.position
        loop = self.loop
        if self._is_over():
            return
        batches = loop.data.train_batches(position.epoch, position.example, loop.global_batch_size)
        with closing(batches):  # a source may prepare batches in a thread
            for batch in batches:
                yield batch
                if self._is_over():
                    return

    @property
    def data(self) -> DataSource:
        """Where the batches come from."""
        return self.loop.data

    def _is_over(self) -> bool:
        return self.state.stop_reason is not None or self.state.step >= self.loop.total_steps


class TrainingContext:
    """The parts of one training.

    Args:
        trainer: has or makes the model, the data and the optimizer; all steps are its.
        pipeline: the data of the same configuration; in its place come the trainer's own batches.
        manager: the model's adapter, or a `ModelManager` of the same configuration, which is given
            the trainer's model.

    Attributes:
        pipeline: iterating gives the batches that are left of the current epoch.

    Raises:
        ValueError: the parts are not of one configuration.
    """

    def __init__(
        self,
        trainer: EnhancedTrainer,
        pipeline: EpochBatches | DataPipeline | None = None,
        manager: ModelAdapter | ModelManager | None = None,
    ) -> None:
        loop = trainer.prepare()
        assert trainer.state is not None
        if isinstance(pipeline, DataPipeline) and pipeline.config != trainer.data_config:
            raise InputError("training.pipeline_of_other_data")
        if isinstance(manager, ModelManager):
            manager.take_from(trainer)
        self.trainer = trainer
        self.pipeline = EpochBatches(loop, trainer.state)
        self.manager = manager or trainer.adapter
        self.start_epoch()
        remember_own_loop(self)

    @property
    def state(self) -> TrainingState:
        return self.pipeline.state

    @property
    def num_epochs(self) -> int:
        return sum(phase.num_epochs for phase in self.trainer.prepare().phases)

    @property
    def settings(self) -> Mapping[str, object]:
        """One's own settings: `training.settings`, with the defaults that parts declare."""
        return self.trainer.training_config.own_settings

    def start_epoch(self) -> None:
        """Make ready to train what this epoch's phase trains; the position stays where it is."""
        state, loop = self.state, self.pipeline.loop
        state.model.train()
        if state.position.phase < len(loop.phases):
            state.phase = loop.phases[state.position.phase]
            loop.optimizer_step.strategy.enter_phase(
                state.model, loop.optimizer_step.optimizer, state.position.phase
            )
            select_trainable(state.model, state.phase, loop.optimizer_step.optimizer)
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


def initialize_training(
    config: DeploymentConfig | None = None, **options: object
) -> TrainingContext:
    """Build everything that `config` names.

    Args:
        config: None: what the configuration file and the environment say.
        options: EnhancedTrainer's keywords; without `checkpoint_directory`, checkpoints go to a
            folder of their own in the configuration's `output_dir`, made by the first one.

    Raises:
        ValueError: something in the configuration cannot be; says what and what to do.
    """
    config = load_config() if config is None else config
    for note in config.notes():
        log.warning(note)
    options.setdefault("checkpoint_directory", own_loop_checkpoints(config))
    context = TrainingContext(TrainerFactory().for_run(config, None, **options))
    config.note_num_epochs(context.num_epochs)
    return context


def should_checkpoint(context: TrainingContext | None = None) -> bool:
    """Whether a checkpoint is due after the last step: as the configuration says, by steps, epochs
    or time, and after the last step of all.

    Args:
        context: None: the only training that was prepared in this process.
    """
    own = own_loop(context, "should_checkpoint")
    loop: TrainingLoop = own.trainer.prepare()
    return loop.save_is_due(own.state)
