"""Data, model and trainer that accept a whole configuration, for users who assemble a run.

The classes extend those that a run uses. They load data and models only when needed.
"""

import secrets
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.backup.state.optimizer_state import merge_optimizer, split_optimizer
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.data import data_pipeline
from infrastructure.data.defaults import make_ready
from infrastructure.data.serving.collate import pad
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.data.store.token_store import TokenStore
from infrastructure.models import model_manager
from infrastructure.models.model_manager import LoadedModel
from infrastructure.models.registry import MODELS
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training import unsloth_trainer
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.precision import choose_device
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.loop.session import TrainingSession
from infrastructure.training.setup.resource_limits import apply_resource_limits, caches_within

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODEL, OPTIMIZER = "model", "optimizer"  # keys of a state, and groups of a checkpoint


class ModelManager(model_manager.ModelManager):
    """A model manager that takes a model section or a whole configuration.

    Args:
        config: a whole configuration also supplies the keyword arguments of
            `infrastructure.models.model_manager.ModelManager`.
    """

    def __init__(self, config: DeploymentConfig | ModelConfig, **options: Any) -> None:
        self._loaded: LoadedModel | None = None
        self._trained: torch.nn.Module | None = None
        self.checkpoint_dir: Path | None = None
        if isinstance(config, ModelConfig):
            super().__init__(config, **options)
            return
        make_ready(config)
        self.checkpoint_dir = own_loop_checkpoints(config)
        training, data = config.training, config.data
        of_config: dict[str, object] = {
            "device": choose_device(config.device),
            "seed": training.seed,
            "max_length": data.max_length,
            "gradient_checkpointing": training.gradient_checkpointing,
            "checkpointing_mode": training.gradient_checkpointing_mode,
            "memory_efficient_attention": training.memory_efficient_attention,
            "tokenizer_texts": lambda: data_pipeline.training_texts(data),
        }
        super().__init__(config.model, **{**of_config, **options})

    @property
    def base_model(self) -> torch.nn.Module:
        """The model, with its LoRA weights if it has any; loaded on first access."""
        if self._trained is None:
            self._loaded = self.load()
            self._trained = self._loaded.model
        return self._trained

    @property
    def adapters(self) -> list[str]:
        """The names of the LoRA adapters in the model."""
        return list(getattr(self.base_model, "peft_config", {}))

    def take_from(self, trainer: EnhancedTrainer) -> None:
        """Use the trainer's model as `base_model`, and the trainer's checkpoint folder as
        `checkpoint_dir`.

        Raises:
            ValueError: the trainer's model has another configuration.
        """
        mine, its = self.config, trainer.model_config
        if mine.model_copy(update={"backend": its.backend}) != its:
            raise InputError("specification.manager_of_other_model")
        self._trained = trainer.initialize_model()
        if trainer.checkpoints is not None:
            self.checkpoint_dir = trainer.checkpoints.store.root

    def save_checkpoint(self, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint.

        Args:
            state: `step`, `model` (a state_dict), optionally `optimizer` (a state_dict), and any
                other JSON values.

        Returns:
            The path of the checkpoint's manifest, which `load_checkpoint` takes.

        Raises:
            ValueError: a value is neither a tensor nor JSON, or there is no folder to write to.
            StorageError: the disk returns an error.
        """
        if self.checkpoint_dir is None:
            raise InputError("specification.manager_without_checkpoint_dir")
        tensors = {MODEL: dict(state[MODEL])}
        values = {key: value for key, value in state.items() if key not in (MODEL, OPTIMIZER)}
        if OPTIMIZER in state:
            tensors[OPTIMIZER], values[OPTIMIZER] = split_optimizer(state[OPTIMIZER])
        return CheckpointManager(self.checkpoint_dir).save(Snapshot(tensors, values))

    def load_checkpoint(self, path: Path | str) -> dict[str, Any]:
        """Load a checkpoint that `save_checkpoint` wrote, and return its state.

        The weights are loaded into `base_model`.

        Raises:
            CheckpointError: the checkpoint is damaged, or belongs to another model.
        """
        snapshot = load_checkpoint(Path(path))
        state = {**snapshot.values, MODEL: snapshot.tensors.get(MODEL, {})}
        try:
            self.base_model.load_state_dict(state[MODEL])
        except RuntimeError as error:
            raise CheckpointError(
                "specification.checkpoint_of_other_model", path=path, error=error
            ) from error
        if OPTIMIZER in state:
            tensors = snapshot.tensors.get(OPTIMIZER, {})
            state[OPTIMIZER] = merge_optimizer(tensors, state[OPTIMIZER])
        return state


class DataPipeline(data_pipeline.DataPipeline):
    """A data pipeline that takes a data section and a tokenizer, or a whole configuration.

    Iterating yields the batches of the first epoch.

    Args:
        config: a whole configuration supplies the tokenizer of its model and the keyword arguments
            of `infrastructure.data.data_pipeline.DataPipeline`.
    """

    def __init__(
        self,
        config: DeploymentConfig | DataConfig,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        **options: Any,
    ) -> None:
        self.batch_size = 1
        if isinstance(config, DataConfig):
            super().__init__(config, _given(tokenizer), **options)
            return
        make_ready(config)
        of_config: dict[str, object] = {
            "cache_config": caches_within(config.cache, config.memory),
            "seed": config.training.seed,
            "memory_config": config.memory,
        }
        if config.training.batch_size != "auto":
            self.batch_size = config.training.batch_size * config.training.gradient_accumulation
        if tokenizer is None:
            tokenizer = ModelManager(config).load_tokenizer()
        super().__init__(config.data, _given(tokenizer), **{**of_config, **options})

    @property
    def dataset(self) -> TokenStore:
        """The tokenized examples, which are prepared on first access."""
        return self.store

    @property
    def cache(self) -> Path:
        """The folder that contains the tokenized examples."""
        return self.store.folder

    @property
    def dataloader(self) -> Generator[list[TokenizedExample], None, None]:
        """A new iterator over the batches of the first epoch."""
        return self.train_batches(0, 0, self.batch_size)

    def __iter__(self) -> Iterator[list[TokenizedExample]]:
        return self.dataloader

    def process_batch(
        self, batch: Sequence[TokenizedExample] | Sequence[str]
    ) -> dict[str, torch.Tensor]:
        """Convert examples of this pipeline, or texts, to tensors for a model.

        Returns:
            int64 tensors (B, L): `input_ids` and `attention_mask`, and for examples also `labels`.
        """
        if all(isinstance(one, str) for one in batch):
            encoded = self.tokenizer(list(batch), padding=True, return_tensors="pt")
            return {name: encoded[name] for name in ("input_ids", "attention_mask")}
        return pad(batch, self.tokenizer.pad_token_id)  # type: ignore[arg-type]


def _given(tokenizer: "PreTrainedTokenizerBase | None") -> "PreTrainedTokenizerBase":
    if tokenizer is None:
        raise InputError("specification.texts_without_tokenizer")
    return tokenizer


class UnslothTrainer(unsloth_trainer.UnslothTrainer):
    """A trainer whose model is loaded by Unsloth.

    Args:
        config: the model section, or a whole configuration, which contains all other sections.

    Raises:
        MissingPackageError: unsloth is not installed.
        ValueError: a section is given in addition to a whole configuration, or the configuration
            cannot be used.
    """

    def __init__(
        self,
        config: DeploymentConfig | ModelConfig,
        training_config: TrainingConfig | None = None,
        data_config: DataConfig | None = None,
        cache_config: CacheConfig | None = None,
        **options: Any,
    ) -> None:
        self.whole_config: DeploymentConfig | None = None
        if isinstance(config, ModelConfig):
            sections = training_config or TrainingConfig(), data_config or DataConfig()
            super().__init__(config, *sections, cache_config, **options)
            return
        if training_config or data_config or cache_config:
            raise InputError("specification.configuration_and_sections")
        make_ready(config)
        config.know_models(MODELS)
        of_config: dict[str, object] = {
            "device": config.device,
            "memory_budget": MemoryBudget.of(config),
            "sections": config.sections_of_features(),
            "checkpoint_directory": own_loop_checkpoints(config),
            "memory_config": config.memory,
        }
        super().__init__(
            config.model,
            config.training,
            config.data,
            caches_within(config.cache, config.memory),
            **{**of_config, **options},
        )
        self.whole_config = config
        apply_resource_limits(self, config)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. Reading it prepares the training if necessary."""
        return self.prepare().loop.optimizer_step.optimizer

    @property
    def scheduler(self) -> LambdaLR | None:
        """The learning-rate scheduler. Reading it prepares the training if necessary."""
        return self.prepare().loop.optimizer_step.scheduler

    @property
    def quantization(self) -> str | None:
        """The quantization of the base weights: "4bit", "8bit", or None if not quantized."""
        return self.model_config.quantization

    def prepare(self) -> TrainingSession:
        session = super().prepare()
        if self.whole_config is not None:
            self.whole_config.note_num_epochs(session.planned.num_epochs)
        return session


def own_loop_checkpoints(config: DeploymentConfig) -> Path:
    """Return the path of a new checkpoint folder that no other run uses.

    Runs do not share a folder, because old checkpoints in it are deleted.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-own-loop-{secrets.token_hex(2)}"
    return Path(config.output_dir) / name / "checkpoints"
