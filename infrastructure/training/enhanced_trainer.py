"""EnhancedTrainer puts adapter, data, strategy, hooks and loop together; it trains nothing."""

import logging
import random
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infrastructure.backup.retention import Retention
from infrastructure.config.data_config import DataConfig
from infrastructure.config.deployment_config import check_sections
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.resolve import (
    learning_rate_for,
    num_epochs_for,
    trains_from_scratch,
)
from infrastructure.config.resource_config import CacheConfig
from infrastructure.config.training_config import TrainingConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.going_back import go_back
from infrastructure.training.checkpoints.snapshot import (
    Participants,
    Snapshot,
    restore_snapshot,
    take_snapshot,
)
from infrastructure.training.data.token_cache import DEFAULT_DIRECTORY
from infrastructure.training.extensions.extension_hooks import Hook, HookRunner
from infrastructure.training.extensions.extension_manager import create_extensions
from infrastructure.training.held_out_loss import HeldOutLoss
from infrastructure.training.loop import TrainingLoop
from infrastructure.training.model_adapters import get_model_adapter
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.models.registry import MODELS
from infrastructure.training.models.source import registered_name
from infrastructure.training.observers import EarlyStopping
from infrastructure.training.precision import Precision, choose_device, choose_precision
from infrastructure.training.recovery.memory_limits import MemoryLimits, describe_device
from infrastructure.training.recovery.notes import note
from infrastructure.training.state import TrainingState
from infrastructure.training.strategies import get_training_strategy
from infrastructure.training.strategies.base_strategy import TrainingStrategy

log = logging.getLogger(__name__)


class EnhancedTrainer:
    """The coordinator of one training.

    `prepare()` builds everything and may be called on its own; `train()` prepares if needed.

    Args:
        model_config, training_config, data_config: three sections of the configuration.
        model_adapter, training_strategy: given, or made from the configuration.
        device: "auto", "cpu", "cuda" or "cuda:n".
        cache_config: where prepared data is kept, and how much of it.
        checkpoint_directory: where checkpoints go; None saves none.
        hooks: observers and extensions besides `training_config.enabled_extensions`.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        data_config: DataConfig,
        model_adapter: ModelAdapter | None = None,
        training_strategy: TrainingStrategy | None = None,
        *,
        device: str = "auto",
        cache_config: CacheConfig | None = None,
        checkpoint_directory: Path | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        check_sections(model_config, training_config, data_config)
        self.model_config = model_config
        self.training_config = training_config
        self.data_config = data_config
        self.cache_config = cache_config or CacheConfig()
        self.device = choose_device(device)
        self.precision: Precision = choose_precision(training_config.mixed_precision, self.device)
        self.adapter = model_adapter or get_model_adapter(
            adapter_name(model_config), model_config, training_config, self.device
        )
        self.strategy = training_strategy or get_training_strategy(
            training_config.strategy_for(model_config), training_config
        )
        extensions = create_extensions(training_config.enabled_extensions)
        self.hooks = HookRunner([*extensions, *hooks, *early_stopping(training_config)])
        self.checkpoints: CheckpointManager | None = None
        if checkpoint_directory is not None:
            self.save_checkpoints_to(checkpoint_directory)
        self.model: torch.nn.Module | None = None
        self.data: DataSource | None = None
        self.loop: TrainingLoop | None = None
        self.state: TrainingState | None = None
        self.participants: Participants | None = None

    def add_hooks(self, hooks: Iterable[Hook]) -> None:
        """Add observers or extensions; before `prepare` only.

        Raises:
            ValueError: the loop has its hooks already, or a name is there twice.
        """
        if self.loop is not None:
            raise ValueError("hooks are added before prepare() builds the loop")
        self.hooks = HookRunner([*self.hooks.hooks, *hooks])

    def save_checkpoints_to(self, directory: Path) -> None:
        """Write checkpoints into `directory`, which is made by the first one."""
        self.checkpoints = CheckpointManager(
            directory, Retention(keep_last=self.training_config.keep_checkpoints)
        )

    def initialize_model(self) -> torch.nn.Module:
        """Build or load the model; the same seed gives the same weights."""
        if self.model is None:
            seed_everything(self.training_config.seed)
            self.adapter.data_config = self.data_config
            self.model = self.adapter.initialize_model()
        return self.model

    def initialize_data(self) -> DataSource:
        """Read, check and tokenise the data; needs the model's tokenizer.

        Raises:
            ValueError, DataError: the data cannot be used; names file, line and remedy.
        """
        self.initialize_model()
        if self.data is None:
            self.data = self.adapter.create_data_source(
                self.cache_config, self.training_config.seed
            )
            if self.data.num_examples == 0:
                raise ValueError(f"{self.data_config.path}: no example is left to train on")
        return self.data

    def prepare(self) -> TrainingLoop:
        """Build what is missing: model, data, optimizer, schedule, loop. Trains nothing."""
        if self.loop is None:
            model, data = self.initialize_model(), self.initialize_data()
            self.state = TrainingState(model, micro_batch_size=self._micro_batch_size())
            self.state.optimizer = self._bind_strategy(model)
            self.loop = self._build_loop(model, data, self.state.optimizer)
            self.state.total_steps = self.loop.total_steps
        return self.loop

    def _bind_strategy(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        self.strategy.compute_loss = self.adapter.compute_loss
        self.strategy.precision = self.precision
        learning_rate = learning_rate_for(
            self.training_config, self.model_config, starts_from_scratch(self.model_config)
        )
        return self.strategy.create_optimizer(model, learning_rate)

    def _build_loop(
        self, model: torch.nn.Module, data: DataSource, optimizer: torch.optim.Optimizer
    ) -> TrainingLoop:
        config = self.training_config
        batch_size = int(config.batch_size) * config.gradient_accumulation
        steps_per_epoch = -(-data.num_examples // batch_size)
        from_scratch = starts_from_scratch(self.model_config)
        num_epochs = num_epochs_for(config, from_scratch, steps_per_epoch)
        total_steps = min(config.max_steps or sys.maxsize, num_epochs * steps_per_epoch)
        scheduler = self.strategy.create_scheduler(optimizer, total_steps)
        phases = self.strategy.phases(model, num_epochs)
        loop = TrainingLoop(
            config=config,
            adapter=self.adapter,
            strategy=self.strategy,
            data=data,
            hooks=self.hooks,
            optimizer=optimizer,
            scheduler=scheduler,
            scaler=self.precision.create_scaler(),
            phases=phases,
            batch_size=batch_size,
            total_steps=total_steps,
            evaluate=self.evaluate if holds_out(data) else None,
            save=self._begin_checkpoint if self.checkpoints else None,
            collect=self.checkpoints.collect if self.checkpoints else lambda wait: [],
            go_back=self._go_back if self.checkpoints else None,
            keep_evidence=self._keep_evidence if self.checkpoints else None,
            remember_limit=lambda size: self._memory_limits().remember(self._memory_key(), size),
        )
        self.participants = Participants(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            scaler=loop.scaler,
            loop=loop,
            device=self.device,
        )
        return loop

    def train(self) -> TrainingState:
        """Train from where the state stands to the end.

        Raises:
            TrainingDivergedError: the loss is no longer finite.
            Exception: whatever went wrong; the steps before it are in a checkpoint.
        """
        loop = self.prepare()
        assert self.state is not None
        self.model.train()  # type: ignore[union-attr]
        try:
            return loop.run(self.state)
        finally:
            if self.checkpoints is not None:
                self.checkpoints.close()

    def evaluate(self) -> dict[str, float]:
        """Held-out loss per supervised item, empty where nothing is held out; leaves no trace."""
        model, data = self.initialize_model(), self.initialize_data()
        size = int(self.training_config.batch_size)
        if self.state is not None:  # what has fitted so far
            size = min(size, self.state.micro_batch_size)
        measured = HeldOutLoss(
            model,
            self.adapter,
            self.precision,
            may_halve=self.training_config.recovery.out_of_memory == "smaller",
            on_smaller=self._note_smaller_evaluation,
        )
        return measured.measure(data.evaluation_batches(size))

    def train_step(self, batch: Sequence[Any]) -> float:
        """One optimizer step on a batch of examples outside the loop; returns the mean loss."""
        loop = self.prepare()
        assert self.state is not None
        return loop.single_step(self.state, batch)

    def save_checkpoint(self, state: TrainingState) -> Path:
        """Write everything that decides how the training goes on.

        Raises:
            OSError: the disk refuses; earlier checkpoints are untouched.
        """
        if self.checkpoints is None or self.participants is None:
            raise ValueError("this trainer has no checkpoint_directory to save to")
        return self.checkpoints.save(self._snapshot(state))

    def _begin_checkpoint(self, state: TrainingState) -> None:
        assert self.checkpoints is not None
        self.checkpoints.begin(self._snapshot(state))

    def _go_back(self, state: TrainingState) -> Path:
        assert self.checkpoints is not None
        assert self.participants is not None
        return go_back(self.checkpoints, state, self.participants)

    def _keep_evidence(self, state: TrainingState) -> Path:
        assert self.checkpoints is not None
        return self.checkpoints.save(self._snapshot(state), kind="emergency", healthy=False)

    def _note_smaller_evaluation(self, size: int, why: str) -> None:
        if self.state is not None:
            note(self.state, "out_of_memory", f"evaluated {size} examples at a time", why)

    def _memory_limits(self) -> MemoryLimits:
        return MemoryLimits(Path(self.cache_config.directory or DEFAULT_DIRECTORY).expanduser())

    def _memory_key(self) -> dict[str, Any]:
        return {
            **describe_device(self.device),
            "model": self.model_config.name,
            "max_length": self.data_config.max_length,
            "precision": self.precision.name,
            "lora": bool(self.adapter.describe().get("lora")),
            "gradient_checkpointing": self.training_config.gradient_checkpointing,
        }

    def _micro_batch_size(self) -> int:
        """What was asked for, or what fitted last time, if that is less."""
        asked = int(self.training_config.batch_size)
        limits = self._memory_limits()
        fitted = limits.get(self._memory_key())
        if fitted is None or fitted >= asked:
            return asked
        log.warning(
            "micro-batches of %d, not of %d, which did not fit on this device before (%s);"
            " the batch and the result stay the same",
            fitted,
            asked,
            limits.path,
        )
        return fitted

    def _snapshot(self, state: TrainingState) -> Snapshot:
        assert self.participants is not None
        snapshot = take_snapshot(state, self.participants)
        snapshot.values["identity"] = self.identity()
        return snapshot

    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to go on to the same result."""
        config, described = self.training_config, self.adapter.describe()
        frozen_base = bool(described.get("lora"))  # full training overwrites every weight
        return {
            "data": self.initialize_data().fingerprint,
            "base model": described.get("base_sha256") if frozen_base else None,
            "base model's revision": described.get("revision") if frozen_base else None,
            "optimizer": config.optimizer,
            "batch size": int(config.batch_size) * config.gradient_accumulation,
            "total steps": self.prepare().total_steps,
            "seed": config.seed,
        }

    def restore(self, checkpoint: Path) -> None:
        """Go on from `checkpoint` when `train()` is called.

        Raises:
            CheckpointError: it is damaged, or of another model or optimizer.
        """
        self.prepare()
        assert self.state is not None
        assert self.participants is not None
        snapshot = load_checkpoint(checkpoint)
        refuse_other_training(snapshot.values.get("identity", {}), self.identity())
        restore_snapshot(snapshot, self.state, self.participants)
        self.state.checkpoint = checkpoint
        saved = self.checkpoints.checkpoints() if self.checkpoints is not None else []
        self.prepare().start_is_saved = saved[-1:] == [checkpoint]


def refuse_other_training(began_with: dict[str, Any], found: dict[str, Any]) -> None:
    """A checkpoint goes on in the training that it was taken from.

    Raises:
        CheckpointError: something that changes the result is different; lists all of it.
    """
    differences = [
        f"{name} (it was {_short(value)}, it is {_short(found.get(name))})"
        for name, value in began_with.items()
        if value != found.get(name)
    ]
    if differences:
        raise CheckpointError(
            f"since this checkpoint was saved, these have changed: {', '.join(differences)};"
            " bring them back, or start a new run"
        )


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else str(value)


def early_stopping(config: TrainingConfig) -> list[Hook]:
    """The observer that the configuration asks for, if it does."""
    if config.early_stopping_patience is None:
        return []
    return [EarlyStopping(config.early_stopping_patience, config.early_stopping_min_delta)]


def adapter_name(model_config: ModelConfig) -> str:
    """A registered model says which adapter it needs; any other has the configured one."""
    name = registered_name(model_config.name)
    return MODELS[name].adapter if name in MODELS else model_config.adapter


def starts_from_scratch(model_config: ModelConfig) -> bool:
    """Whether the weights are new: the embedded model's, and a registered module's."""
    return trains_from_scratch(model_config) or model_config.name in MODELS


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators (all devices)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def holds_out(data: DataSource) -> bool:
    """Whether there is anything to evaluate on."""
    with closing(data.evaluation_batches(1)) as batches:
        return next(batches, None) is not None
