"""The trainer that combines adapter, data, strategy, hooks and training loop."""

import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import retention_of
from infrastructure.backup.state.random_state import capture_random, seed_everything
from infrastructure.config.auto import (
    added_learning_rate_for,
    learning_rate_for,
    num_epochs_for,
)
from infrastructure.config.base import ConfigSection, ConfigurationError
from infrastructure.config.deployment_config import check_sections
from infrastructure.config.measures import PERPLEXITY
from infrastructure.config.merging.added_weights import (
    added_weights_refusals,
    saved_weights_refusals,
)
from infrastructure.config.merging.declared_settings import declare_settings
from infrastructure.config.merging.plugin_names import CodeOfParts
from infrastructure.config.merging.sharding import sharding_refusals, why_not_spread
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.agent import time_left
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.core.hardware import gib, processor
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonObject, JsonValue, as_object
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.shared_cores import THREADS_VARIABLE
from infrastructure.data.encoding.tokenization import LABELS_VERSION
from infrastructure.models.added_modules import added_modules
from infrastructure.models.model_inputs import is_sharded
from infrastructure.models.packed_attention import attention_form
from infrastructure.models.preserve import preserve
from infrastructure.models.saving_check import prepare_saving
from infrastructure.models.source import (
    starts_from_scratch,
)
from infrastructure.models.trainable_state import trainable_state, whole
from infrastructure.models.weights_on_disk import put_back
from infrastructure.optimization.device_errors import free_memory
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.optimization.peak_memory import PeakMemory
from infrastructure.run.compatibility import Difference, Verdict, check_compatible
from infrastructure.run.configuration_judge import (
    ConfigurationJudge,
    canonical_name,
    recorded_grid,
)
from infrastructure.run.history import history_in
from infrastructure.run.identity import HELD_OUT_DATA, keyed, new_key
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
    load_values,
)
from infrastructure.training.checkpoints.save_schedule import REQUEST_FILE, SaveSchedule
from infrastructure.training.checkpoints.snapshot import (
    Snapshot,
    restore_progress,
    restore_snapshot,
)
from infrastructure.training.core.precision import Precision, choose_precision, training_device
from infrastructure.training.core.state import Phase, RecoveryKind, TrainingState
from infrastructure.training.distributed.checkpoint_storage import load_together
from infrastructure.training.distributed.group import ALONE, Group, JoinedGroup
from infrastructure.training.distributed.ranks import Ranks
from infrastructure.training.distributed.shard import Sharding, mesh_of, shard_model
from infrastructure.training.extensions.extension_hooks import Extension, Hook
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
from infrastructure.training.loop.loss_judge import LossJudge
from infrastructure.training.loop.optimizer_step import OptimizerStep
from infrastructure.training.model_adapters import (
    ADAPTERS,
    adapter_name,
    check_token_functions,
    get_model_adapter,
)
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from infrastructure.training.observers.early_stopping import early_stopping
from infrastructure.training.observers.standstill import Standstill
from infrastructure.training.recovery.recovery_log import record_recovery
from infrastructure.training.recovery.save_retry import SaveRetryPolicy
from infrastructure.training.resume.fingerprint import (
    base_facts,
    code_of_objects,
    code_of_parts,
    config_facts,
    machine_facts,
    processing_facts,
    settings_of,
)
from infrastructure.training.resume.overrides import (
    MICRO_BATCH,
    apply_hyperparameters,
    forget_optimizer,
    hyperparameters,
    move_position,
    resumed_total_steps,
)
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.sizing.batch_planner import BatchPlanner
from infrastructure.training.sizing.cost_measurement import CostMeasurement
from infrastructure.training.strategies import STRATEGIES, get_training_strategy
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from infrastructure.training.strategies.run_parts import ExampleSource

Poll = Callable[[], None]
# Measures further held-out metrics of the model's outputs; the configuration says which.
MeasureAnswers = Callable[["EnhancedTrainer", Poll], Mapping[str, float]]


def _no_reserve() -> float:
    return 0.0


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

    Attributes:
        answering: measures the model's outputs in each evaluation of the loop. None: not measured.
        ranks: the ranks of this run if this process is rank 0. None: this process trains alone or
            is another rank.
        group: the group that this process has joined as a rank other than 0.
        sharding: how the model is sharded over the ranks during training. None: each rank has the
            whole model.
        before: held-out metrics before the first step, if the model is too large for any single
            process to evaluate it.
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
        self.precision: Precision = choose_precision(training_config.mixed_precision, self.device)
        if self.precision.name == "fp32" and training_config.holds_half_weights:
            self.precision = choose_precision("bf16", self.device)  # otherwise dtypes mismatch
        self._declare_settings(model_adapter, training_strategy)
        self.adapter = model_adapter or get_model_adapter(
            adapter_name(model_config, data_config), model_config, training_config, self.device
        )
        self.adapter.precision = self.precision
        self.adapter.data_config = data_config
        self.adapter.memory_config = memory_config or self.adapter.memory_config
        self.adapter.saved_tokenizer = saved_tokenizer or self.adapter.saved_tokenizer
        check_token_functions(self.adapter, training_config)
        self.strategy = training_strategy or get_training_strategy(
            training_config.strategy_for(model_config), training_config
        )
        extensions = [
            *create_extensions(training_config.extensions, self),
            *self.strategy.extensions(self),
        ]
        self._refuse_added_weights(extensions)
        self.configured_extensions = list(extensions)  # which every rank can build
        self.hooks = ExtensionManager(
            [*extensions, *hooks, *early_stopping(training_config), Standstill()]
        )
        self.ranks: Ranks | None = None
        self.group: Group = ALONE
        self.sharding: Sharding | None = None
        self.sharding_sentence = ""  # the reason for it
        self._restore_spread: Callable[[Group], None] | None = None
        self.before: dict[str, float] = {}
        self.backend_sentence: str | None = None  # why this library loads the model
        deadline = time_left(training_config.deadline)
        self.schedule = SaveSchedule(training_config.checkpoint_seconds, deadline)
        self.checkpoints: CheckpointManager | None = None
        if checkpoint_directory is not None:
            self.save_checkpoints_to(checkpoint_directory)
        self.model: torch.nn.Module | None = None
        self.data: DataSource | None = None
        self.loop: TrainingLoop | None = None
        self.state: TrainingState | None = None
        self.planned_steps = 0
        self._num_first = 0  # steps of the phases that extensions train first
        self.answering: MeasureAnswers | None = None
        self.memory_budget = memory_budget or MemoryBudget()
        self.planner = BatchPlanner(
            (model_config, training_config, data_config),
            lambda: self.cache_config,
            self.adapter,
            self.precision,
            self.cost_measurement,
        )
        self._identity: dict[str, Any] | None = None
        self._run_key: str | None = new_key()  # None: a run that began without a key

    def _declare_settings(
        self,
        adapter: ModelAdapter | None,
        strategy: TrainingStrategy | None,
    ) -> None:
        """Declare the settings of adapter, strategy and extensions before these are created."""
        config, model_config = self.training_config, self.model_config
        parts = [
            type(adapter)
            if adapter
            else ADAPTERS.get(adapter_name(model_config, self.data_config)),
            type(strategy) if strategy else STRATEGIES.get(config.strategy_for(model_config)),
            *own_extensions(config.extensions),
        ]
        declare_settings(config, parts)

    def _refuse_added_weights(self, extensions: Iterable[Hook]) -> None:
        names = [e.name for e in extensions if isinstance(e, Extension) and e.adds_weights]
        problems = added_weights_refusals(names, self.model_config, self.training_config)
        if sentence := next(problems, None):
            raise ConfigurationError(sentence)

    def _refuse_saved_weights(self, model: torch.nn.Module) -> None:
        """Raise if the model was saved with added weights that these settings do not support."""
        names = added_modules(model)
        problems = saved_weights_refusals(names, self.model_config, self.training_config)
        if sentence := next(problems, None):
            raise ConfigurationError(sentence)

    def add_hooks(self, hooks: Iterable[Hook]) -> None:
        """Add observers or extensions; possible only before `prepare`.

        Raises:
            ValueError: the loop already has its hooks, or a name occurs twice.
        """
        if self.loop is not None:
            raise InputError("training.hooks_added_too_late")
        self.hooks = ExtensionManager([*self.hooks.hooks, *hooks])

    def save_checkpoints_to(
        self,
        directory: Path,
        run_files: Callable[[], Mapping[str, TensorBytes]] = dict,
        reserve_seconds: Callable[[], float] = _no_reserve,
    ) -> None:
        """Save checkpoints in `directory`, which is created when the first one is saved.

        Args:
            run_files: returns further files to include in every checkpoint.
            reserve_seconds: returns the time needed after the last save, such as for uploading it.
                The training stops that much earlier before a deadline.
        """
        config = self.training_config
        self.checkpoints = CheckpointManager(directory, retention_of(config), run_files)
        self.schedule.request = directory / REQUEST_FILE
        self.schedule.reserve = reserve_seconds

    def initialize_model(self) -> torch.nn.Module:
        """Build or load the model; the same seed gives the same weights."""
        if self.model is None:
            self.adapter.on_disk = self.adapter.on_disk or self._is_too_large()
            seed_everything(self.training_config.seed)
            model = self.adapter.initialize_model()
            self._refuse_saved_weights(model)
            self.model = model
            self.hooks.attach(self.model, self.training_config)
            self.adapter.note_added_weights()
            self.bind_strategy().prepare_model(self.model)
        return self.model

    def initialize_data(self) -> DataSource:
        """Read, check and tokenize the data. This needs the model's tokenizer.

        Raises:
            ValueError, DataError: the data cannot be used. The message names file, line and remedy.
        """
        self.initialize_model()
        if self.data is None:
            self.data = self.adapter.create_data_source(
                self.cache_config, self.training_config.seed
            )
            if self.data.num_examples == 0:
                raise InputError("training.no_examples_left", path=self.data_config.path)
            for extension in self.hooks.extensions:
                extension.inspect(self.data, self.initialize_model())
            if self.ranks is not None:
                self.sharding_sentence = self._choose_sharding()
        return self.data

    def cost_measurement(self) -> CostMeasurement:
        """Return an object that measures memory and time of this run's steps on this machine."""
        model, data = self.initialize_model(), self.initialize_data()
        optimizer = partial(self.create_optimizer, model)
        epochs = (extension.epoch_lengths() for extension in self.hooks.extensions)
        return CostMeasurement(
            model,
            self.adapter,
            self.strategy,
            data,
            optimizer,
            self.memory_budget,
            next((lengths for lengths in epochs if lengths is not None), None),
        )

    @property
    def num_processes(self) -> int:
        """The number of ranks of this training, including this process."""
        return self.group.size if self.ranks is None else self.ranks.size

    def _may_spread(self) -> bool:
        wanted = self.training_config.shard
        why_not = next(why_not_spread(self.model_config, self.training_config), None)
        return self.num_processes > 1 and wanted != "no" and not (why_not and wanted == "auto")

    def _is_too_large(self) -> bool:
        """Return whether this process should read only its own part of the weights.

        It should if the memory cannot hold the whole model and this process's part of the training
        state.
        """
        if self.ranks is None or not self._may_spread():
            return False
        weights = self.adapter.weight_bytes()
        if weights is None:
            return False
        size = self.num_processes
        there = self.memory_budget.limit_bytes(self.device, size)
        # a gradient and two AdamW values for each trained weight
        part = weights * (1 if self.model_config.lora_config else 4) // size
        return PeakMemory(self.device).now() + weights + part > there

    def _choose_sharding(self) -> str:
        """Decide whether to shard the model, set `sharding`, and return a sentence with the reason.

        The sentence is empty if sharding is not possible.
        """
        wanted, size = self.training_config.shard, self.num_processes
        if not self._may_spread():
            return ""
        measurement, share = self.cost_measurement(), f"1/{size}"
        spread = phrase("training.sharded_state", size=size, share=share)
        if self.adapter.on_disk:
            spread += phrase("training.no_process_has_whole_model")
        if wanted != "auto":
            self.sharding = Sharding(wanted)
            return phrase(
                "config.setting_says", setting=Setting("training.shard", wanted), reason=spread
            )
        on_disk = self.adapter.weight_bytes() if self.adapter.on_disk else None
        needed = measurement.fixed_bytes() + (on_disk or 0)
        there = measurement.budget.limit_bytes(self.device, size)
        if needed <= there and not self.adapter.on_disk:
            return phrase(
                "training.state_fits_each_process",
                size=size,
                needed=gib(needed),
                available=gib(there),
            )
        self.sharding = Sharding.SHARD
        return phrase(
            "training.state_is_sharded",
            needed=gib(needed),
            available=gib(there),
            sharding=spread,
        )

    def batch_plan(self) -> BatchPlan:
        """Return the global batch size and micro-batch size; see `BatchPlanner.decide`."""
        return self.planner.decide()

    def prepare(self) -> TrainingLoop:
        """Build what training needs and does not have yet: model, data, optimizer, schedule and
        loop.
        """
        if self.loop is None:
            if self.training_config.best_needs_answers and self.answering is None:
                raise ConfigurationError(
                    "training.best_metric_needs_answers",
                    best_metric=self.training_config.best_metric,
                )
            alone = sharding_refusals(
                self.model_config, self.training_config, has_others=self.num_processes > 1
            )
            if sentence := next(alone, None):
                raise ConfigurationError(sentence)
            model, data = self.initialize_model(), self.initialize_data()
            prepare_saving(model, getattr(data, "stop_token_ids", ()))
            self.state = TrainingState(
                model,
                micro_batch_size=self.planner.memory_limit().at_most(
                    self.batch_plan().micro_batch_size
                ),
                best_metric=self.training_config.best_metric_key,
                best_is_greater=self.training_config.best_is_greater,
                measured_on=self.held_out_identity(),
            )
            self.state.optimizer = self.create_optimizer(model)
            self.loop = self._build_loop(model, data, self.state.optimizer)
            self.state.total_steps = self.planned_steps = self.loop.total_steps
        return self.loop

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. Reading it prepares the training if necessary."""
        return self.prepare().optimizer_step.optimizer

    @property
    def scheduler(self) -> LambdaLR | None:
        """The learning-rate scheduler. Reading it prepares the training if necessary."""
        return self.prepare().optimizer_step.scheduler

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that train in this phase, by name; see `trainable_parameters`."""
        loop, state = self.prepare(), self.state
        assert state is not None
        return trainable_parameters(loop, state)

    @property
    def gradients(self) -> TrainerGradients:
        """The last batch's gradients at the current weights, by parameter; see `last_gradients`.

        Raises:
            ValueError: no batch has been trained on yet.
        """
        loop, state = self.prepare(), self.state
        assert state is not None
        gradients = last_gradients(loop, state)
        return TrainerGradients(gradients, self.sections)

    @property
    def quantization(self) -> str | None:
        """The quantization of the base weights: "4bit", "8bit", or None if not quantized."""
        return self.model_config.quantization

    def use_precision(self, name: str) -> None:
        """Set the precision of the computation; possible only before training starts."""
        precision = Precision(name, self.device.type)
        self.precision = self.planner.precision = self.adapter.precision = precision
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

    def use_num_threads(self, count: int) -> None:
        """Set the number of CPU threads for the whole process."""
        torch.set_num_threads(count)

    @property
    def num_threads(self) -> int | None:
        """The number of CPU threads, which affects rounding in the result.

        None if a GPU computes, or several processes share the threads.
        """
        is_alone = self.device.type == "cpu" and self.num_processes == 1
        return torch.get_num_threads() if is_alone else None

    def keep_num_threads(self, count: object) -> None:
        """Use the `count` threads with which the resumed run began, but not more than there are
        cores.

        If an environment variable sets the number of threads, it takes precedence.
        """
        if isinstance(count, int) and self.num_threads and not os.environ.get(THREADS_VARIABLE):
            self.use_num_threads(max(1, min(count, processor().num_cores)))

    def bind_strategy(self) -> TrainingStrategy:
        """Give the strategy everything that it needs for a step, and return the strategy."""
        self.strategy.compute_loss = self.adapter.compute_loss
        self.strategy.precision = self.precision
        self.strategy.added_rate = added_learning_rate_for(
            self.training_config, self._learning_rate()
        )
        self.strategy.objective = getattr(self.adapter, "objective", None)
        return self.strategy

    def create_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Create an optimizer for `model`, with this run's strategy and learning rate."""
        return self.bind_strategy().create_optimizer(model, self._learning_rate())

    def _learning_rate(self) -> float:
        from_scratch = starts_from_scratch(self.model_config)
        return learning_rate_for(self.training_config, self.model_config, from_scratch)

    def _build_loop(
        self, model: torch.nn.Module, data: DataSource, optimizer: torch.optim.Optimizer
    ) -> TrainingLoop:
        config = self.training_config
        global_batch_size = self.batch_plan().global_batch_size
        phases, total_steps = self._length(model, data, global_batch_size)
        scheduler = self._create_scheduler(optimizer, total_steps)
        scaler = self.precision.create_scaler()
        recovery = config.recovery
        step = OptimizerStep(
            adapter=self.adapter,
            strategy=self.strategy,
            data=data,
            hooks=self.hooks,
            optimizer=optimizer,
            scheduler=scheduler,
            scaler=scaler,
            losses=LossJudge(recovery, data, self.device, scaler is not None),
            recovery=recovery,
            remember_limit=self._remember_limit,
            seed=config.seed,
        )
        failures = SaveRetryPolicy()
        checkpointer = Checkpointer(self.checkpoints, step, self.identity, self.schedule, failures)
        return TrainingLoop(
            step,
            ErrorRecovery(step, checkpointer, recovery),
            checkpointer,
            config=config,
            phases=phases,
            global_batch_size=global_batch_size,
            total_steps=total_steps,
            evaluate=self._evaluate_in_loop if holds_out(data) else None,
            join=self._join,
            leave=self._leave,
        )

    def _join(self) -> Group:
        """Wait for all ranks, shard the model over them if configured, and return their group.

        Raises:
            ProcessLostError: a rank is unavailable.
        """
        group = self.group if self.ranks is None else self.ranks.join()
        if self.sharding is not None and isinstance(group, JoinedGroup):
            self._spread(group, self.sharding)
        return group

    def _leave(self, reason: str | None) -> None:
        try:
            if reason is None and self.sharding is not None:
                self._put_together()
        finally:
            close = self.group.close if self.ranks is None else self.ranks.close
            close(reason)

    def _spread(self, group: JoinedGroup, sharding: Sharding) -> None:
        """Shard the model over the ranks, and create the optimizer again for the sharded weights.

        All ranks start from rank 0's weights, or resume from its checkpoint.
        """
        loop, state = self.prepare(), self.state
        assert state is not None
        if is_sharded(state.model):
            return
        step, model = loop.optimizer_step, state.model
        if not self.adapter.on_disk:  # each rank reads its part
            group.broadcast(trainable_state(model).values())
        step.optimizer.param_groups.clear()  # it would keep the whole weights
        shard_model(model, mesh_of(group), offload=sharding is Sharding.OFFLOAD)
        state.optimizer = step.optimizer = self.create_optimizer(model)
        step.scheduler = self._create_scheduler(step.optimizer, loop.total_steps)
        free_memory(self.device)
        restores = group.decide(lambda: self._restore_spread is not None)
        if restores and self._restore_spread is not None:
            self._restore_spread(group)
            limit = self.planner.memory_limit()  # lowered if a rank ran out of memory
            state.micro_batch_size = limit.at_most(state.micro_batch_size)
        elif restores:
            snapshot = load_together(group, None, model, step.optimizer)
            snapshot.tensors["random"] = capture_random(self.device)
            restore_snapshot(snapshot, state, step)
        elif self.adapter.on_disk and holds_out(loop.data):
            with group.watched():
                self.before = self.evaluate()

    def _put_together(self) -> None:
        """Gather the trained weights of all ranks in a whole model on rank 0."""
        group = self.group if self.ranks is None else self.ranks.group
        loop, state = self.loop, self.state
        assert loop is not None
        assert state is not None
        if not isinstance(group, JoinedGroup) or not is_sharded(state.model):
            return
        if group.decide(lambda: state.is_interrupted):
            return
        parts = trainable_state(state.model)
        loop.optimizer_step.optimizer.state.clear()
        gathered = ((name, whole(part)) for name, part in parts.items())
        if not group.is_first:
            with group.watched():
                deque(gathered, maxlen=0)
            return
        seed_everything(self.training_config.seed)
        with group.busy(), preserve(state.model, random=self.device):
            model = self.adapter.initialize_model()
        with group.watched(), torch.no_grad():
            if self.adapter.on_disk:
                put_back(model, gathered, self._folder())
            else:
                targets = trainable_state(model)
                for name, weight in gathered:
                    targets[name].copy_(weight)
        self.model = state.model = model

    def _folder(self) -> Path:
        """Return the folder of this run, or a folder for temporary files."""
        run = self.checkpoints.store.root.parent if self.checkpoints is not None else None
        return run or Path(tempfile.gettempdir())

    def _remember_limit(self, micro_batch_size: int) -> None:
        if self.group.is_first or self.sharding is not None:
            self.planner.memory_limit().remember(micro_batch_size)

    def check_length(self) -> int:
        """Check that the run is long enough to reach its last phase.

        Returns:
            The number of optimizer steps.

        Raises:
            ValueError: the training ends before its last phase begins.
        """
        global_batch_size = self.batch_plan().global_batch_size
        model, data = self.initialize_model(), self.initialize_data()
        return self._length(model, data, global_batch_size)[1]

    def _length(
        self, model: torch.nn.Module, data: DataSource, global_batch_size: int
    ) -> tuple[list[Phase], int]:
        """Return the phases of the training and the total number of optimizer steps."""
        config = self.training_config
        steps_per_epoch = ceil_div(data.num_examples, global_batch_size)
        num_phases = sum(phase.num_epochs for phase in self.strategy.phases(model, 1))
        from_scratch = starts_from_scratch(self.model_config)
        num_epochs = num_epochs_for(config, from_scratch, steps_per_epoch, num_phases)
        self.strategy.steps_per_epoch = steps_per_epoch
        can_keep = config.names_examples and not self.data_config.streaming
        if can_keep and self.group.is_first:  # the others compute what their share needs
            self.strategy.source = self._example_source(data)
        extensions = self.hooks.extensions
        first = [phase for extension in extensions for phase in extension.first_phases(model)]
        phases = [*first, *self.strategy.phases(model, num_epochs)]
        all_epochs = sum(phase.num_epochs for phase in phases)
        total_steps = min(config.max_steps or sys.maxsize, all_epochs * steps_per_epoch)
        self._num_first = sum(phase.num_epochs for phase in first) * steps_per_epoch
        if first and total_steps <= self._num_first:
            raise InputError(
                "training.run_ends_in_first_phase",
                total_steps=total_steps,
                num_steps=self._num_first,
                phase=first[-1].name,
            )
        self.strategy.check_length(total_steps)
        return phases, total_steps

    def _create_scheduler(self, optimizer: torch.optim.Optimizer, total_steps: int) -> LambdaLR:
        num_first = self._num_first
        later = self.strategy.create_scheduler(optimizer, total_steps - num_first)
        if not num_first:
            return later
        first = self.strategy.rate_factor(num_first)
        peak = added_learning_rate_for(self.training_config, self._learning_rate())

        def of_group(rate: float, factor: Callable[[int], float]) -> Callable[[int], float]:
            def at(step: int) -> float:
                return first(step) * peak / rate if step < num_first else factor(step - num_first)

            return at

        rates = [float(group["initial_lr"]) for group in optimizer.param_groups]
        pairs = zip(rates, later.lr_lambdas, strict=True)
        return LambdaLR(optimizer, [of_group(rate, factor) for rate, factor in pairs])

    def _example_source(self, data: DataSource) -> ExampleSource:
        """Return the source of examples for strategies that store a value for each example."""
        run = self.checkpoints.store.root.parent if self.checkpoints is not None else None
        facts: JsonObject = {
            "labels": LABELS_VERSION,
            "precision": self.precision.name,
            "seed": self.training_config.seed,  # of the masks
            "size_grid": self.adapter.size_grid.value,
            "device": self.device.type,
        }
        folder = run or self.planner.cache_directory
        return ExampleSource(data, self.adapter.prepare_batch, folder, facts)

    def train(self) -> TrainingState:
        """Train from the current state to the end.

        Raises:
            TrainingDivergedError: the loss is no longer finite.
            Exception: any other error; a checkpoint contains the finished steps.
        """
        loop = self.prepare()
        assert self.state is not None
        self.model.train()  # type: ignore[union-attr]
        try:
            return loop.run(self.state)
        finally:
            if self.checkpoints is not None:
                self.checkpoints.close()
            self.strategy.close(self.state.step >= loop.total_steps)

    def evaluate(
        self,
        poll: Callable[[], None] = do_nothing,
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
        if self.state is not None:  # what has fitted so far
            size = min(size, self.state.micro_batch_size)
        measured = kind(
            model,
            self.adapter,
            self.precision,
            may_halve=self.training_config.recovery.out_of_memory == "smaller",
            on_smaller=self._note_smaller_evaluation,
        )
        with self.strategy.evaluating():
            return measured.measure(with_polling(data.evaluation_batches(size), poll))

    def _evaluate_in_loop(self) -> dict[str, float]:
        loop, state = self.prepare(), self.state
        assert state is not None
        numbers = self.evaluate(lambda: loop.poll(state))
        if self.training_config.best_metric == PERPLEXITY:
            numbers[self.training_config.best_metric_key] = perplexity(numbers["eval_loss"])
        if self.answering is not None:
            numbers |= self.answering(self, lambda: loop.poll(state))
        return numbers

    def train_step(self, batch: Sequence[object]) -> float:
        """Perform one optimizer step on a batch in a custom training loop, and return the mean
        loss.

        Raises:
            ConfigurationError: the run has several processes, which cannot use a custom loop.
        """
        if self.num_processes > 1:
            raise ConfigurationError(
                "training.own_loop_has_one_process", num_processes=self.num_processes
            )
        loop = self.prepare()
        assert self.state is not None
        return loop.single_step(self.state, batch)

    def save_checkpoint(self, state: TrainingState) -> Path:
        """Save a checkpoint of the run, and return its path.

        Raises:
            ValueError: this trainer has no folder for checkpoints.
            OSError: the disk returns an error. Earlier checkpoints are untouched.
        """
        return self.prepare().checkpointer.save_now(state)

    def _note_smaller_evaluation(self, size: int, why: str) -> None:
        if self.state is not None:
            record_recovery(
                self.state,
                RecoveryKind.OUT_OF_MEMORY,
                phrase("training.evaluated_in_smaller_batches", size=size),
                why,
            )

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the result, to compare when a run resumes.

        See `run.compatibility`.
        """
        loop = self.prepare()
        if self._identity is None:
            self._identity = {
                "settings": settings_of(self),
                "resolved": {
                    "training.learning_rate": self._learning_rate(),
                    "training.num_epochs": sum(phase.num_epochs for phase in loop.phases),
                    **self.batch_plan().resolved(),
                },
                "key": self._run_key,
                "data": self._keyed(loop.data.fingerprint),
                "labels": LABELS_VERSION,
                "num_examples": loop.data.num_examples,
                "precision": self.precision.name,
                "planned_steps": self.planned_steps,
                "code": (code := code_of_parts(self)),
                "parts": self._parts(code),
                **base_facts(self.adapter.describe()),
                **machine_facts(self.device, self.num_processes),
            }
        of_now = {
            "size_grid": self.adapter.size_grid.value,
            "attention": self.attention_form(),
            "num_threads": self.num_threads,
            "total_steps": loop.total_steps,
        }
        return {**self._identity, **of_now}

    def held_out_identity(self) -> str | None:
        """Return a hash of the held-out rows; None if the data source has none."""
        identity: str | None = getattr(self.initialize_data(), "held_out_identity", None)
        return identity

    def _parts(self, code: CodeOfParts) -> dict[str, JsonValue]:
        """Return the parts of the identity that are not settings, data files or weights."""
        assert self.data is not None
        contents = getattr(self.data, "contents", None)
        held_out = None if contents is None else contents(held_out=True)
        parts = {
            HELD_OUT_DATA: None if held_out is None else self._keyed(held_out.tobytes().hex()),
            "model_config": config_facts(getattr(self.initialize_model(), "config", None)),
            **processing_facts(getattr(self.adapter, "processor", None) or self.adapter.tokenizer),
            "objects": code_of_objects([self.strategy, self.adapter, *self.hooks.extensions], code),
        }
        if second := as_object(self.adapter.describe().get("second_base") or {}):
            parts["processor"] = second.get("processor")
        return {name: part for name, part in parts.items() if part is not None}

    def _keyed(self, rows: str) -> str:
        """Return a keyed hash of rows, so that without the run's key nothing can be guessed from
        it.
        """
        return rows if self._run_key is None else keyed(self._run_key, rows)

    def attention_form(self) -> str:
        """Return the name of the attention implementation, which affects rounding."""
        step = self.adapter.size_grid.segment_step
        return attention_form(self.initialize_model(), self.device, self.precision.dtype, step)

    def last_mlp_form(self) -> str:
        """Return the tokens for which the last layer's MLP is computed: all, or only
        trained ones.
        """
        narrows = (
            isinstance(self.adapter, StandardModelAdapter)
            and self.sharding is None
            and self.adapter.token_loss.last_mlp(self.initialize_model()) is not None
        )
        return "learnt tokens" if narrows else "all tokens"

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
        may_spread = self.ranks is not None  # known only after model and data are loaded
        snapshot = load_values(checkpoint) if may_spread else load_checkpoint(checkpoint)
        was = snapshot.values.get("identity", {})
        if was:
            self._run_key, self._identity = was.get("key"), None
        if self.loop is None:
            self.planner.repeat(was.get("resolved", {}))
            self.keep_precision(was.get("precision"))
            self.keep_num_threads(was.get("num_threads"))
        self.initialize_model()
        if was:
            self.adapter.size_grid = recorded_grid(was)
        loop, state = self.prepare(), self.state
        assert state is not None
        step = loop.optimizer_step
        current = self.identity()
        agreed = check_compatible(
            was, current, ConfigurationJudge(), frozenset(map(canonical_name, accept))
        )
        accepted = {d.name for d in agreed if d.verdict is Verdict.CHANGES_THE_RESULT}
        groups = hyperparameters(step.optimizer)
        if was:
            move_position(snapshot.values, accepted, loop.phases)
            self._set_length(resumed_total_steps(was, snapshot.values, loop, self.planned_steps))
        if accepted & MICRO_BATCH:
            snapshot.values["micro_batch_size"] = state.micro_batch_size

        def restore(whole_snapshot: Snapshot) -> None:
            if "optimizer" in accepted:
                forget_optimizer(whole_snapshot, step.optimizer)
            restore_snapshot(whole_snapshot, state, step)
            if accepted:
                apply_hyperparameters(step.optimizer, step.scheduler, groups)

        def restore_spread(group: Group) -> None:
            parts = load_together(group, checkpoint, state.model, step.optimizer)
            restore(Snapshot(parts.tensors, snapshot.values))

        if self.sharding is not None:  # no rank holds all of the optimizer's state
            restore_progress(snapshot.values, state)
            self._restore_spread = restore_spread
        else:
            if may_spread:
                snapshot.tensors = load_checkpoint(checkpoint).tensors
            restore(snapshot)
        state.checkpoint = checkpoint
        loop.checkpointer.history = history_in(snapshot.values)
        saved = self.checkpoints.checkpoints() if self.checkpoints is not None else []
        is_changed = bool(accepted) and state.step < loop.total_steps
        loop.checkpointer.start_is_saved = saved[-1:] == [checkpoint] and not is_changed
        return agreed

    def follow_length(self, total_steps: int) -> None:
        """Set the number of steps to that of rank 0. Called on ranks other than 0."""
        self._set_length(total_steps)

    def _set_length(self, total_steps: int) -> None:
        loop, state = self.prepare(), self.state
        if total_steps != loop.total_steps:
            assert state is not None
            state.total_steps = loop.total_steps = total_steps
            step = loop.optimizer_step
            step.scheduler = self._create_scheduler(step.optimizer, total_steps)
