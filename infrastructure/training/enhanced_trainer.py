"""The trainer that combines adapter, data, strategy, hooks and training loop."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import retention_of
from infrastructure.backup.state.random_state import seed_everything
from infrastructure.config.auto import (
    added_learning_rate_for,
    learning_rate_for,
)
from infrastructure.config.base import ConfigSection, ConfigurationError
from infrastructure.config.deployment_config import check_sections
from infrastructure.config.measures import PERPLEXITY
from infrastructure.config.merging.added_weights import (
    added_weights_refusals,
    on_several_processes,
    saved_weights_refusals,
)
from infrastructure.config.merging.declared_settings import declare_settings
from infrastructure.config.merging.sharding import sharding_refusals
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.agent import time_left
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.data.encoding.tokenization import LABELS_VERSION
from infrastructure.models.added_modules import added_modules
from infrastructure.models.model_inputs import is_sharded
from infrastructure.models.saving_check import prepare_saving
from infrastructure.models.source import starts_from_scratch
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.run.compatibility import Difference
from infrastructure.run.configuration_judge import recorded_grid
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
    load_values,
)
from infrastructure.training.checkpoints.save_schedule import REQUEST_FILE, SaveSchedule
from infrastructure.training.core.precision import Precision, choose_precision, training_device
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.extensions.extension_manager import (
    ExtensionManager,
    create_extensions,
    own_extensions,
)
from infrastructure.training.forward.evaluation_loss import (
    EvaluationLoss,
    holds_out,
    perplexity,
    with_polling,
)
from infrastructure.training.loop.checkpointer import Checkpointer
from infrastructure.training.loop.error_recovery import ErrorRecovery
from infrastructure.training.loop.last_gradients import (
    TrainerGradients,
    last_gradients,
    trainable_parameters,
)
from infrastructure.training.loop.loop import TrainingLoop
from infrastructure.training.loop.optimizer_step import OptimizerStep
from infrastructure.training.loop.session import TrainingLength, TrainingSession
from infrastructure.training.model_adapters import (
    ADAPTERS,
    adapter_name,
    check_token_functions,
    get_model_adapter,
)
from infrastructure.training.model_adapters.base_adapter import (
    DataSource,
    ModelAdapter,
    held_out_identity,
)
from infrastructure.training.observers.early_stopping import early_stopping
from infrastructure.training.observers.standstill import Standstill
from infrastructure.training.placement import Placement
from infrastructure.training.recovery.recovery_log import record_recovery
from infrastructure.training.resume.fingerprint import RunIdentity, repeat_num_threads
from infrastructure.training.resume.resumption import Resumption
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.sizing.batch_planner import BatchPlanner
from infrastructure.training.sizing.cost_measurement import CostMeasurement
from infrastructure.training.strategies import STRATEGIES, get_training_strategy
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from infrastructure.training.strategies.run_parts import ExampleSource

Poll = Callable[[], None]
# Measures further held-out metrics of the model's outputs; the configuration says which.
MeasureAnswers = Callable[["EnhancedTrainer", Poll], Mapping[str, float]]


@contextmanager
def _building(trainer: "EnhancedTrainer") -> Iterator[None]:
    """Refuse to build a part of the trainer while another one is being built; forget what is half
    built if an error ends it, so that the next call begins again.
    """
    if trainer._is_building:
        raise InputError("training.part_used_too_early")
    before = trainer._model, trainer._data, trainer._state
    trainer._is_building = True
    try:
        yield
    except BaseException:
        trainer._model, trainer._data, trainer._state = before
        raise
    finally:
        trainer._is_building = False


class EnhancedTrainer:
    """The trainer of one run. It builds model, data, optimizer and loop, and runs the loop.

    `prepare()` builds everything and may be called separately. `train()` prepares if needed.

    Args:
        model_config, training_config, data_config: three sections of the configuration.
        model_adapter, training_strategy: used if given; otherwise created from the configuration.
        device: "auto", "cpu", "cuda" or "cuda:n".
        saved_tokenizer: folder of the tokenizer that the run began with, if it is resumed.
        cache_config: settings of the cache of prepared data.
        memory_config: memory limits for the preparation of data.
        memory_budget: the memory that `batch_size: auto` may use.
        sections: configuration sections of features, by name.
        checkpoint_directory: folder for checkpoints. None: no checkpoints are saved.
        hooks: observers and extensions in addition to `training_config.enabled_extensions`.
        placement: which of the processes of a run this one is. None: it trains alone.
        answering: measures the model's outputs in each evaluation of the loop. None: not measured.
        backend_sentence: why this library loads the model. None: it was not chosen.

    Attributes:
        from_scratch: the model starts with new weights.
        learning_rate: the peak learning rate of the model's own weights.
    """

    def __init__(  # noqa: PLR0913 (its first arguments are those of the specification)
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        data_config: DataConfig,
        model_adapter: ModelAdapter | None = None,
        training_strategy: TrainingStrategy | None = None,
        *,
        device: str = "auto",
        saved_tokenizer: Path | None = None,
        cache_config: CacheConfig | None = None,
        memory_config: MemoryConfig | None = None,
        memory_budget: MemoryBudget | None = None,
        sections: Mapping[str, ConfigSection] = MappingProxyType({}),
        checkpoint_directory: Path | None = None,
        hooks: Iterable[Hook] = (),
        placement: Placement | None = None,
        answering: MeasureAnswers | None = None,
        backend_sentence: str | None = None,
    ) -> None:
        chosen_by = training_strategy.chosen_by if training_strategy else None
        if chosen_by and training_config.strategy == "auto":
            training_config = training_config.copy_with(strategy=chosen_by)
        check_sections(model_config, training_config, data_config, sections)
        self.model_config = model_config
        self.training_config = training_config
        self.data_config = data_config
        self.cache_config = cache_config or CacheConfig()
        self.sections = sections
        self.device = training_device(device)
        precision = choose_precision(training_config.mixed_precision, self.device)
        if precision.name == "fp32" and training_config.holds_half_weights:
            precision = choose_precision("bf16", self.device)  # otherwise dtypes mismatch
        strategy_name = training_config.strategy_for(model_config)
        own_name = "" if model_adapter else adapter_name(model_config, data_config)
        parts = [
            type(model_adapter) if model_adapter else ADAPTERS.get(own_name),
            type(training_strategy) if training_strategy else STRATEGIES.get(strategy_name),
            *own_extensions(training_config.extensions),
        ]
        declare_settings(training_config, parts)  # before the parts are created
        self.adapter = model_adapter or get_model_adapter(
            own_name, model_config, training_config, self.device
        )
        self.adapter.precision = precision
        self.adapter.data_config = data_config
        self.adapter.memory_config = memory_config or self.adapter.memory_config
        self.adapter.saved_tokenizer = saved_tokenizer or self.adapter.saved_tokenizer
        check_token_functions(self.adapter, training_config)
        self.strategy = training_strategy or get_training_strategy(strategy_name, training_config)
        self.placement = placement or Placement()
        self.answering = answering
        self.backend_sentence = backend_sentence
        self._model: torch.nn.Module | None = None
        self._data: DataSource | None = None
        self._state: TrainingState | None = None
        self._session: TrainingSession | None = None
        self._is_building = False
        deadline = time_left(training_config.deadline)
        self.schedule = SaveSchedule(training_config.checkpoint_seconds, deadline)
        self.checkpoints: CheckpointManager | None = None
        if checkpoint_directory is not None:
            self.save_checkpoints_to(checkpoint_directory)
        self.from_scratch = starts_from_scratch(model_config)
        self.learning_rate = learning_rate_for(training_config, model_config, self.from_scratch)
        self.memory_budget = memory_budget or MemoryBudget()
        self.planner = BatchPlanner(
            (model_config, training_config, data_config),
            lambda: self.cache_config,
            self.adapter,
            self.cost_measurement,
        )
        self.run_identity = RunIdentity()
        with _building(self):
            extensions = [
                *create_extensions(training_config.extensions, self),
                *self.strategy.extensions(self),
            ]
        self.hooks = ExtensionManager(self.placement.of_this_rank(extensions))
        adding = self.hooks.adding_weights
        _refuse(added_weights_refusals(adding, model_config, training_config))
        if adding and self.placement.size > 1:
            raise ConfigurationError(on_several_processes(adding, self.placement.size))
        self.add_hooks([*hooks, *early_stopping(training_config), Standstill()])

    def add_hooks(self, hooks: Iterable[Hook]) -> None:
        """Add observers or extensions; possible only before `prepare`.

        Raises:
            ValueError: the loop already has its hooks, or a name occurs twice.
            ConfigurationError: other processes need an extension that they cannot build.
        """
        hooks = list(hooks)
        if self._session is not None:
            raise InputError("training.hooks_added_too_late")
        self.placement.refuse_own(hooks)
        self.hooks = ExtensionManager([*self.hooks.hooks, *self.placement.of_this_rank(hooks)])

    def save_checkpoints_to(
        self,
        directory: Path,
        run_files: Callable[[], Mapping[str, TensorBytes]] = dict,
        reserve_seconds: Callable[[], float] = float,
    ) -> CheckpointManager:
        """Save checkpoints in `directory`, which is created when the first one is saved.

        Args:
            run_files: returns further files to include in every checkpoint.
            reserve_seconds: returns the time needed after the last save, such as for uploading it.
                The training stops that much earlier before a deadline.

        Raises:
            ValueError: the loop exists already.
        """
        if self._session is not None:
            raise InputError("training.checkpoints_chosen_too_late")
        self.checkpoints = CheckpointManager(
            directory, retention_of(self.training_config), run_files
        )
        self.schedule.request = directory / REQUEST_FILE
        self.schedule.reserve = reserve_seconds
        return self.checkpoints

    def initialize_model(self) -> torch.nn.Module:
        """Build or load the model; the same seed gives the same weights."""
        if self._session is not None:
            return self._session.state.model
        if self._model is not None:
            return self._model
        with _building(self):
            too_large = self.placement.is_too_large(self.adapter, self.memory_budget)
            self.adapter.on_disk = self.adapter.on_disk or too_large
            seed_everything(self.training_config.seed)
            model = self.adapter.initialize_model()
            added = added_modules(model)  # which it was saved with
            _refuse(saved_weights_refusals(added, self.model_config, self.training_config))
            self._model = model
            self.hooks.attach(model, self.training_config)
            self.adapter.note_added_weights()
            self.bind_strategy().prepare_model(model)
        return model

    @property
    def model(self) -> torch.nn.Module:
        """The model. Reading it loads the model if necessary."""
        return self.initialize_model()

    def initialize_data(self) -> DataSource:
        """Read, check and tokenize the data. This needs the model's tokenizer.

        Raises:
            ValueError, DataError: the data cannot be used. The message names file, line and remedy.
        """
        model = self.initialize_model()
        if self._data is not None:
            return self._data
        with _building(self):
            seed = self.training_config.seed
            self._data = data = self.adapter.create_data_source(self.cache_config, seed)
            if data.num_examples == 0:
                raise InputError("training.no_examples_left", path=self.data_config.path)
            for extension in self.hooks.extensions:
                extension.inspect(data, model)
            if self.placement.may_shard(self.adapter):
                self.placement.choose_sharding(self.cost_measurement())
        return data

    def cost_measurement(self) -> CostMeasurement:
        """Return an object that measures memory and time of this run's steps on this machine."""
        model, data = self.initialize_model(), self.initialize_data()
        epochs = (extension.epoch_lengths() for extension in self.hooks.extensions)
        return CostMeasurement(
            model,
            self.adapter,
            self.strategy,
            data,
            partial(self.create_optimizer, model),
            self.memory_budget,
            next((lengths for lengths in epochs if lengths is not None), None),
        )

    def batch_plan(self) -> BatchPlan:
        """Return the global batch size and micro-batch size; see `BatchPlanner.decide`."""
        return self.planner.decide()

    def prepare(self) -> TrainingSession:
        """Build what training needs and does not have yet: model, data, optimizer, schedule and
        loop.

        Raises:
            ValueError: the run cannot be trained like this; or an extension, while it is built
                itself, uses a part that does not exist yet.
        """
        if self._session is None:
            config = self.training_config
            if config.best_needs_answers and self.answering is None:
                raise ConfigurationError(
                    "training.best_metric_needs_answers", best_metric=config.best_metric
                )
            has_others = self.placement.size > 1
            _refuse(sharding_refusals(self.model_config, config, has_others=has_others))
            model, data = self.initialize_model(), self.initialize_data()
            prepare_saving(model, getattr(data, "stop_token_ids", ()))
            size = self.batch_plan().micro_batch_size
            with _building(self):
                self._state = state = TrainingState(
                    model,
                    micro_batch_size=self.planner.memory_limit().at_most(size),
                    best_metric=config.best_metric_key,
                    best_is_greater=config.best_is_greater,
                    measured_on=held_out_identity(data),
                )
                state.optimizer = self.create_optimizer(model)
                length = self.length()
                state.total_steps = length.total_steps
                loop = self._build_loop(data, state.optimizer, length)
            self._session = TrainingSession(loop, state, length, self.create_optimizer)
            self._model = None  # the session has it, or what a sharded one is put together as
        return self._session

    @property
    def state(self) -> TrainingState:
        """The state of the training. Reading it prepares the training if necessary."""
        return self._state or self.prepare().state

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that train in this phase, by name; see `trainable_parameters`."""
        session = self.prepare()
        return trainable_parameters(session.loop, session.state)

    @property
    def gradients(self) -> TrainerGradients:
        """The last batch's gradients at the current weights, by parameter; see `last_gradients`.

        Raises:
            ValueError: no batch has been trained on yet.
        """
        session = self.prepare()
        return TrainerGradients(last_gradients(session.loop, session.state), self.sections)

    @property
    def precision(self) -> Precision:
        """The precision of the computation."""
        return self.adapter.precision

    def use_precision(self, name: str) -> None:
        """Set the precision of the computation; possible only before training starts."""
        self.adapter.precision = Precision(name, self.device.type)
        self.bind_strategy()

    def keep_precision(self, name: object) -> None:
        """Use the precision `name`, with which the resumed run began, if no precision is
        configured.

        This applies only on a CPU, where the run chose between fp32 and bf16 by measurement. A
        different precision is rejected later, in the comparison with the checkpoint.
        """
        is_open = self.training_config.mixed_precision is True and self.device.type == "cpu"
        if is_open and name in ("fp32", self.precision.name):
            self.use_precision(str(name))

    def bind_strategy(self) -> TrainingStrategy:
        """Give the strategy everything that it needs for a step, and return the strategy."""
        self.strategy.compute_loss = self.adapter.compute_loss
        self.strategy.precision = self.precision
        self.strategy.added_rate = added_learning_rate_for(self.training_config, self.learning_rate)
        self.strategy.objective = getattr(self.adapter, "objective", None)
        return self.strategy

    def create_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Create an optimizer for `model`, with this run's strategy and learning rate."""
        return self.bind_strategy().create_optimizer(model, self.learning_rate)

    def _build_loop(
        self, data: DataSource, optimizer: torch.optim.Optimizer, length: TrainingLength
    ) -> TrainingLoop:
        config, placement, planner = self.training_config, self.placement, self.planner
        # rank 0 of replicas remembers it, and each rank of a sharded model: the others end
        remembers = placement.is_first or placement.sharding is not None
        step = OptimizerStep(
            adapter=self.adapter,
            strategy=self.strategy,
            data=data,
            hooks=self.hooks,
            optimizer=optimizer,
            scheduler=length.create_scheduler(self.strategy, optimizer),
            scaler=self.precision.create_scaler(),
            recovery=config.recovery,
            remember_limit=planner.remember_limit if remembers else do_nothing,
            seed=config.seed,
        )
        checkpointer = Checkpointer(self.checkpoints, step, self.identity, self.schedule)
        return TrainingLoop(
            step,
            ErrorRecovery(step, checkpointer),
            checkpointer,
            config=config,
            phases=length.phases,
            global_batch_size=self.batch_plan().global_batch_size,
            total_steps=length.total_steps,
            evaluate=self._evaluate_in_loop if holds_out(data) else None,
            join=lambda: placement.join(self.prepare(), planner, self.evaluate),
            leave=lambda reason: placement.leave(self.prepare(), reason),
        )

    def length(self) -> TrainingLength:
        """Return the phases and the number of optimizer steps of a new run.

        Raises:
            ValueError: the training ends before its last phase begins.
        """
        global_batch_size = self.batch_plan().global_batch_size
        model, data = self.initialize_model(), self.initialize_data()
        can_keep = self.training_config.names_examples and not self.data_config.streaming
        if can_keep and self.placement.is_first:  # the others compute what their share needs
            facts: JsonObject = {
                "labels": LABELS_VERSION,
                "precision": self.precision.name,
                "seed": self.training_config.seed,  # of the masks
                "size_grid": self.adapter.size_grid.value,
                "device": self.device.type,
            }
            run = None if self.checkpoints is None else self.checkpoints.store.root.parent
            folder = run or self.planner.cache_directory
            self.strategy.source = ExampleSource(data, self.adapter.prepare_batch, folder, facts)
        steps_per_epoch = ceil_div(data.num_examples, global_batch_size)
        return TrainingLength.of(
            self.training_config,
            self.strategy,
            self.hooks.extensions,
            model,
            steps_per_epoch,
            self.from_scratch,
        )

    def train(self) -> TrainingState:
        """Train from the current state to the end.

        Raises:
            TrainingDivergedError: the loss is no longer finite.
            Exception: any other error; a checkpoint contains the finished steps.
        """
        session = self.prepare()
        session.state.model.train()
        try:
            return session.loop.run(session.state)
        finally:
            if self.checkpoints is not None:
                self.checkpoints.close()
            self.strategy.close(session.state.step >= session.loop.total_steps)

    def evaluate(
        self,
        poll: Poll = do_nothing,
        kind: Callable[..., EvaluationLoss] = EvaluationLoss,
    ) -> dict[str, float]:
        """Return the held-out metrics, without changing the training state.

        `eval_loss` is the mean per supervised item. The result is empty if nothing is held out.

        Args:
            poll: called between two batches. It may raise.
            kind: the class that measures the metrics; a subclass may also record the loss of each
                row.
        """
        model, data = self.initialize_model(), self.initialize_data()
        if self.adapter.on_disk and not is_sharded(model):
            raise ConfigurationError("training.model_exceeds_each_process")
        size = self.batch_plan().micro_batch_size
        state = None if self._session is None else self._session.state
        if state is not None:  # what has fitted so far
            size = min(size, state.micro_batch_size)

        def note_smaller(smaller: int, why: str) -> None:
            if state is not None:
                what = phrase("training.evaluated_in_smaller_batches", size=smaller)
                record_recovery(state, RecoveryKind.OUT_OF_MEMORY, what, why)

        measured = kind(
            model,
            self.adapter,
            self.precision,
            may_halve=self.training_config.recovery.out_of_memory == "smaller",
            on_smaller=note_smaller,
        )
        with self.strategy.evaluating():
            return measured.measure(with_polling(data.evaluation_batches(size), poll))

    def _evaluate_in_loop(self) -> dict[str, float]:
        session = self.prepare()
        poll = partial(session.loop.poll, session.state)
        numbers = self.evaluate(poll)
        if self.training_config.best_metric == PERPLEXITY:
            numbers[self.training_config.best_metric_key] = perplexity(numbers["eval_loss"])
        if self.answering is not None:
            numbers |= self.answering(self, poll)
        return numbers

    def train_step(self, batch: Sequence[object]) -> float:
        """Perform one optimizer step on a batch in a custom training loop, and return the mean
        loss.

        Raises:
            ConfigurationError: the run has several processes, which cannot use a custom loop.
        """
        if self.placement.size > 1:
            raise ConfigurationError(
                "training.own_loop_has_one_process", num_processes=self.placement.size
            )
        session = self.prepare()
        return session.loop.single_step(session.state, batch)

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the result, to compare when a run resumes.

        See `run.compatibility`.
        """
        session = self.prepare()
        resolved = {
            "training.learning_rate": self.learning_rate,
            "training.num_epochs": session.planned.num_epochs,
            **self.batch_plan().resolved(),
        }
        return self.run_identity.of(self, session, resolved, self.placement.size)

    def restore(self, checkpoint: Path, accept: Collection[str] = ()) -> list[Difference]:
        """Load `checkpoint`, so that `train()` resumes from it.

        Args:
            accept: names of settings and inputs that may differ although they change the result,
                such as `["learning_rate", "data"]`; see `configuration_judge.names`.

        Returns:
            The differences that are harmless or accepted.

        Raises:
            ValueError: `accept` contains an unknown name.
            CheckpointError: the checkpoint is damaged, or there is another difference that changes
                the result.
        """
        is_alone = self.placement.size == 1  # others may shard the model, once it is loaded
        snapshot = load_checkpoint(checkpoint) if is_alone else load_values(checkpoint)
        was = snapshot.values.get("identity", {})
        if was:
            self.run_identity.resume(was)
        if self._session is None:
            self.planner.repeat(was.get("resolved", {}))
            self.keep_precision(was.get("precision"))
            repeat_num_threads(was.get("num_threads"), self.device, self.placement.size)
        self.initialize_model()
        if was:
            self.adapter.size_grid = recorded_grid(was)
        session = self.prepare()
        resumption = Resumption(session, checkpoint, snapshot, self.identity(), accept)
        if self.placement.sharding is None:
            resumption.restore()
        else:  # no rank holds all of the optimizer's state
            resumption.restore_progress()
            self.placement.restore_on_join(resumption.restore_part)
        return resumption.agreed


def _refuse(sentences: Iterator[str]) -> None:
    """Raise a ConfigurationError with the first sentence, if there is one."""
    if sentence := next(sentences, None):
        raise ConfigurationError(sentence)
