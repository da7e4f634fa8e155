"""Training as plain functions, for users who write their own loop.

    context = initialize_training(config)
    for epoch in range(config.num_epochs):
        context.start_epoch()
        for batch in context.pipeline:
            loss = context.trainer.train_step(batch)
            if should_checkpoint():
                context.save_state()
        context.end_epoch()

The parts can also be built one by one from one whole configuration:

    trainer, pipeline, manager = UnslothTrainer(config), DataPipeline(config), ModelManager(config)
    trainer.prepare()
    context = TrainingContext(trainer, pipeline, manager)

A batch has the examples of one optimizer step, which `gradient_accumulation` may split further.
After `max_steps` steps, no more batches follow. `context.run()` does the whole training in the
regular loop, with its hooks.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.errors import InputError
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.features.specification.whole_config import ModelManager, own_loop_checkpoints
from infrastructure.training.core.own_loop import own_loop, remember_own_loop
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.loop.loop import TrainingLoop, phase_ends, select_trainable
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.trainer_factory import TrainerFactory

log = logging.getLogger(__name__)


@dataclass
class EpochBatches:
    """The batches of the current epoch that are not trained yet, as an iterable.

    The iteration ends early if the run reaches its last step.
    """

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
        """The data source that the batches come from."""
        return self.loop.data

    def _is_over(self) -> bool:
        return self.state.stop_reason is not None or self.state.step >= self.loop.total_steps


class TrainingContext:
    """The trainer, the data and the model of one run.

    Args:
        trainer: performs all steps; it creates its model, data and optimizer if it has none.
        pipeline: the data of the same configuration. It is checked, and then replaced by the
            trainer's own batches.
        manager: the model's adapter, or a `ModelManager` of the same configuration, which receives
            the trainer's model.

    Attributes:
        pipeline: yields the remaining batches of the current epoch.

    Raises:
        ValueError: the parts come from different configurations.
    """

    def __init__(
        self,
        trainer: EnhancedTrainer,
        pipeline: EpochBatches | DataPipeline | None = None,
        manager: ModelAdapter | ModelManager | None = None,
    ) -> None:
        session = trainer.prepare()
        if isinstance(pipeline, DataPipeline) and pipeline.config != trainer.data_config:
            raise InputError("specification.pipeline_of_other_data")
        if isinstance(manager, ModelManager):
            manager.take_from(trainer)
        self.trainer = trainer
        self.pipeline = EpochBatches(session.loop, session.state)
        self.manager = manager or trainer.adapter
        self.start_epoch()
        remember_own_loop(self)

    @property
    def state(self) -> TrainingState:
        return self.pipeline.state

    @property
    def num_epochs(self) -> int:
        return self.trainer.prepare().planned.num_epochs

    @property
    def settings(self) -> Mapping[str, object]:
        """User-defined settings: `training.settings`, and the declared defaults of missing ones."""
        return self.trainer.training_config.own_settings

    def start_epoch(self) -> None:
        """Select the trainable parameters of the current phase. The position does not change."""
        state, loop = self.state, self.pipeline.loop
        state.model.train()
        if state.position.phase < len(loop.phases):
            state.phase = loop.phases[state.position.phase]
            loop.optimizer_step.strategy.enter_phase(
                state.model, loop.optimizer_step.optimizer, state.position.phase
            )
            select_trainable(state.model, state.phase, loop.optimizer_step.optimizer)
        for hook in loop.hooks.hooks:
            if isinstance(hook, Extension):
                hook.carry_out(state)

    def end_epoch(self) -> None:
        """Move to the start of the next epoch, and to the next phase if the current one is over."""
        position = self.state.position
        position.epoch += 1
        position.example = 0
        if position.epoch in phase_ends(self.pipeline.loop.phases):
            position.phase += 1

    def save_state(self) -> Path:
        """Write a checkpoint of the current state and return its path."""
        return self.trainer.prepare().save_checkpoint()

    def run(self) -> TrainingState:
        """Train to the end in the regular training loop, and return the final state."""
        return self.trainer.train()


def initialize_training(
    config: DeploymentConfig | None = None, **options: object
) -> TrainingContext:
    """Build the trainer, the data and the model of a configuration.

    Args:
        config: None: load it from the configuration file and the environment.
        options: keyword arguments of EnhancedTrainer. By default, `checkpoint_directory` is a new
            folder in the configuration's `output_dir`, which the first checkpoint creates.

    Raises:
        ValueError: the configuration is invalid. The message says what is wrong and what to do.
    """
    config = load_config() if config is None else config
    for note in config.notes():
        log.warning(note)
    options.setdefault("checkpoint_directory", own_loop_checkpoints(config))
    context = TrainingContext(TrainerFactory().for_run(config, None, **options))
    config.note_num_epochs(context.num_epochs)
    return context


def should_checkpoint(context: TrainingContext | None = None) -> bool:
    """Return whether a checkpoint is due after the most recent step.

    The configuration sets the interval in steps, epochs or time. A checkpoint is also due after the
    final step.

    Args:
        context: None: the only context that was created in this process.
    """
    own = own_loop(context, "should_checkpoint")
    return own.trainer.prepare().loop.save_is_due(own.state)
