"""Adapter for causal language models, with packed or padded batches and a loss per token.

With an `Objective`, the model is trained to predict hidden tokens instead of the next token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.checksums import write_sums
from infrastructure.core.features import all_of
from infrastructure.core.files import whole_directory
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.data.data_pipeline import DataPipeline, training_texts
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.samples import known_tokenizer
from infrastructure.data.serving.collate import pack, pad, padded_length
from infrastructure.data.store.examples import EXAMPLES, TokenizedExample
from infrastructure.models.fitting import describe_added
from infrastructure.models.model_change import ModelChange, changes_of
from infrastructure.models.model_inputs import attention_implementation, inner_model
from infrastructure.models.model_manager import LoadedModel, ModelManager
from infrastructure.models.packed_attention import use_packed_attention
from infrastructure.models.packing_check import (
    Measure,
    chunk_size,
    prepare_packing,
    token_embeddings,
)
from infrastructure.models.saving import save_model
from infrastructure.models.token_functions import metrics_by_key, own_loss
from infrastructure.models.token_loss import TokenLoss, backbone, supervised_targets
from infrastructure.optimization.compiling import set_compiled
from infrastructure.optimization.gpu_capability import train_in_fp8
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.model_adapters.base_adapter import (
    Batch,
    DataSource,
    LossOutput,
    ModelAdapter,
    Objective,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class StandardModelAdapter(ModelAdapter):
    """An adapter for any causal language model that `ModelManager` loads.

    Attributes:
        packs: True if batches are packed rows. False if padding was requested, or if a check shows
            that packed examples attend to each other in this model.
        objective: hides the tokens that the model is to predict. None: the model predicts the next
            token. `set_objective` sets it.
    """

    tokenizer: "PreTrainedTokenizerBase"
    takes_token_functions = True

    def __init__(
        self, model_config: ModelConfig, training_config: TrainingConfig, device: torch.device
    ) -> None:
        super().__init__(model_config, training_config, device)
        self.token_loss = TokenLoss(own_loss(training_config.loss))
        self.metrics = metrics_by_key(training_config.token_metrics)
        self.packs = False
        self.objective: Objective | None = None
        self.description: JsonObject = {"name": model_config.name}
        self._notes: list[str] = []

    def _manager(self) -> ModelManager:
        manager = ModelManager(
            self.model_config,
            device=self.device,
            seed=self.training_config.seed,
            gradient_checkpointing=self.training_config.gradient_checkpointing,
            checkpointing_mode=self.training_config.gradient_checkpointing_mode,
            memory_efficient_attention=self.training_config.memory_efficient_attention,
            max_length=self.data_config.max_length,
            tokenizer_texts=lambda: training_texts(self.data_config),
            tokenizer_directory=self.saved_tokenizer,
        )
        manager.changes = self.changes
        manager.on_disk = self.on_disk
        vocab_size = self.model_config.embedded.vocab_size
        manager.known_tokenizer = known_tokenizer(self.data_config, vocab_size)
        return manager

    @property
    def changes(self) -> list[ModelChange]:
        """What features change about the model."""
        return changes_of(self.model_config, self.training_config)

    def weight_bytes(self) -> int | None:
        return self._manager().weight_bytes()

    def _load(self) -> LoadedModel:
        return self._manager().load()

    def initialize_tokenizer(self) -> "PreTrainedTokenizerBase | None":
        tokenizer = self._manager().load_tokenizer()
        if tokenizer is not None:
            self.tokenizer = tokenizer
        return tokenizer

    def initialize_model(self) -> torch.nn.Module:
        loaded = self._load()
        assert loaded.tokenizer is not None
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.description = loaded.description
        self._notes += loaded.notes
        if self.precision.name == "fp8":
            train_in_fp8(loaded.model)
        with self.precision.autocast():
            if self.on_disk:
                self._probe_few_blocks(loaded.model)
            else:
                self._probe(loaded.model)
        mode = self.training_config.compile_mode
        if mode not in (None, "auto"):  # auto is decided when training starts
            self.set_compiled(True, mode)
        return loaded.model

    def set_compiled(self, is_on: bool, mode: str = "default") -> None:
        """Compile the model without its output layer, or undo the compilation.

        The output layer is not compiled because its loss is computed in chunks.
        """
        assert self.model is not None
        set_compiled(backbone(self.model) or self.model, is_on, mode)

    def _probe(self, model: torch.nn.Module) -> None:
        """Test which optimizations (loss in chunks, packing, ...) the model supports."""
        self.token_loss.prepare(model)
        if self.training_config.compile_mode is not None:  # compiled code runs no hooks
            self.token_loss.narrows_last_mlp = False
        if not self.token_loss.balances:
            is_cpu = self.device.type == "cpu"
            self.size_grid = SizeGrid.EIGHTHS if is_cpu else SizeGrid.SIXTEENTHS
        objective = self._masks(model)
        if objective is not None:
            self.set_objective(objective)
        elif self.data_config.packing:
            self._prepare_packing(model)

    def _probe_few_blocks(self, model: torch.nn.Module) -> None:
        """Test which optimizations the model supports, with a model of the same kind that has fewer
        layers.
        """
        few = self._manager().load_few_blocks()
        self._probe(few)
        if attention_implementation(few) != attention_implementation(model):
            use_packed_attention(model)

    def _prepare_packing(
        self, model: torch.nn.Module, with_pictures: Measure | None = None
    ) -> None:
        why_padded = prepare_packing(model, self.data_config.max_length, with_pictures)
        self.packs = not why_padded
        self._notes += filter(None, [why_padded])

    def _masks(self, model: torch.nn.Module) -> Objective | None:
        known = 1 + max(self.tokenizer.get_vocab().values())
        vocab_size = min(known, token_embeddings(model).num_embeddings)
        given = self.training_config, self.tokenizer, vocab_size
        made: Iterator[Objective | None] = (make(*given) for make in all_of("objective"))
        return next(filter(None, made), None)

    def set_objective(self, objective: Objective) -> None:
        """Train on hidden tokens instead of next tokens from now on, in padded rows.

        Raises:
            ValueError: the model cannot attend in both directions.
        """
        assert self.model is not None
        objective.check_model(self.model)
        self.objective, self.packs = objective, False
        config: object = getattr(inner_model(self.model), "config", None)
        window = getattr(config, "sliding_window", None) or chunk_size(self.model)
        if window is not None and window < self.data_config.max_length:
            self._notes.append(phrase("models.windowed_layers_see_whole_row", window=window))

    def prepare_batch(self, examples: Sequence[TokenizedExample]) -> Batch:
        """Return one packed row or padded rows on the device, with their target tokens."""
        if self.objective is not None:
            batch = self._masked_rows(examples, self.objective)
        else:
            batch = self._rows(examples)
            labels = batch.pop("labels")
            positions, targets = supervised_targets(labels, batch.get("cu_seq_lens"))
            batch |= {"target_positions": positions, "targets": targets}
        if self.training_config.names_examples:
            batch[EXAMPLES] = list(examples)
        return {name: self._to_device(value) for name, value in batch.items()}

    def _rows(self, examples: Sequence[TokenizedExample]) -> Batch:
        if self.packs:
            return pack(examples, self.size_grid)
        return pad(examples, self.pad_token_id, self.size_grid, self.data_config.max_length)

    @property
    def pad_token_id(self) -> int:
        """The ID of the padding token, which the model neither trains on nor attends to."""
        return int(self.tokenizer.pad_token_id)

    def _masked_rows(self, examples: Sequence[TokenizedExample], objective: Objective) -> Batch:
        """Return padded rows in which some tokens are hidden. The hidden tokens are the targets."""
        masked = [objective.mask(example, held_out=self._is_held_out) for example in examples]
        pairs = zip(examples, masked, strict=True)
        batch = self._rows([replace(example, input_ids=m.input_ids) for example, m in pairs])
        del batch["labels"]
        length = batch["input_ids"].shape[1]
        positions = np.concatenate([row * length + m.positions for row, m in enumerate(masked)])
        batch["target_positions"] = torch.from_numpy(positions)
        batch["targets"] = torch.from_numpy(np.concatenate([m.targets for m in masked]))
        if objective.weighting != "none":
            weights = [np.full(len(m.targets), m.weight, dtype=np.float32) for m in masked]
            batch["target_weights"] = torch.from_numpy(np.concatenate(weights))
        return batch | {"is_bidirectional": True, "num_items": self.count_items(examples)}

    @property
    def _is_held_out(self) -> bool:
        """True if the model is in evaluation mode, in which always the same tokens of an example
        are hidden.
        """
        return self.model is not None and not self.model.training

    def _to_device(self, value: object) -> object:
        if not isinstance(value, torch.Tensor) or self.device.type == "cpu":
            return value
        if self.data_config.pin_memory:
            value = value.pin_memory()
        return value.to(self.device, non_blocking=True)

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        loss_sum, num_items = self.token_loss(model, batch, self.size_grid)
        return LossOutput(loss_sum, batch.get("num_items", num_items))

    def sum_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, tuple[float, int]]:
        if not self.metrics:
            return {}
        return self.token_loss.metric_sums(model, batch, self.metrics, self.size_grid)

    def count_items(self, examples: Sequence[TokenizedExample]) -> int:
        if self.objective is not None:
            held_out, count = self._is_held_out, self.objective.count_items
            return sum(count(example, held_out=held_out) for example in examples)
        return sum(int(example.supervised.sum()) for example in examples)

    def count_tokens(self, examples: Sequence[TokenizedExample]) -> int:
        return sum(len(example.input_ids) for example in examples)

    def count_computed(self, examples: Sequence[TokenizedExample]) -> int:
        if self.packs:
            return self.size_grid.up(self.count_tokens(examples))
        longest = max(len(example.input_ids) for example in examples)
        return len(examples) * padded_length(longest, self.size_grid, self.data_config.max_length)

    @property
    def pictures(self) -> PictureTokens | None:
        """The converter of images to tokens and pixels; None if the model reads no images."""
        return None

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        """Read and tokenize the configured data files.

        Raises:
            ValueError, DataError: the files cannot be used. The message names file, line and
                remedy.
        """
        pipeline = DataPipeline(
            self.data_config,
            self.tokenizer,
            cache_config=cache_config,
            seed=seed,
            memory_config=self.memory_config,
            pictures=self.pictures,
        )
        pipeline.prepare()
        return pipeline

    def describe(self) -> JsonObject:
        description = {"packing": self.packs, "loss_method": self.token_loss.method}
        if self.objective is not None:
            description["corruption"] = self.objective.corruption
        return {**self.description, **description}

    def note_added_weights(self) -> None:
        assert self.model is not None
        self.description |= describe_added(self.model)

    def notes(self) -> list[str]:
        return list(self._notes)

    def save(self, directory: Path) -> None:
        assert self.model is not None
        save_model(self.model, self.tokenizer, directory)
        for change in self.changes:
            if change.rounding is not None:
                rounded = directory.with_name(f"{directory.name}-{change.rounding.kind}")
                with whole_directory(rounded.resolve()) as part:
                    change.write_rounded(directory, part, self.tokenizer)
                    write_sums(part)
