"""UnifiedTrainer: stack-wise training of layers, or of a model, that one has already.

The same loop, checkpoints and phases as everything else; what is named in a `TrainingConfig` does
here what it does in a run of `temper train`.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.config.data_config import DataConfig
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.resource_config import CacheConfig
from infrastructure.config.training_config import TrainingConfig as TrainingConfig
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.data.examples import TokenizedExample
from infrastructure.training.data.order import epoch_order
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.model_adapters.layers_adapter import (
    LayersAdapter,
    LayersModel,
    LoaderSource,
    Loss,
    inputs_and_targets,
)
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from infrastructure.training.models.packing_check import token_embeddings
from infrastructure.training.precision import choose_device, choose_precision
from infrastructure.training.stackwise.masking import MaskedObjective, objective_of
from infrastructure.training.state import TrainingState

IGNORED = -100


class UnifiedTrainer:
    """Trains layers a unit at a time, or all at once, as a `TrainingConfig` says.

    Args:
        config: `mode`, `strategy` and what belongs to them; also epochs, rates, seed.
        output_dir: checkpoints go to `output_dir/checkpoints`; a training that was broken off goes
            on from them when `train_all_layers` is called again with the same layers and data.
            None: nothing is saved.
        device: "auto", "cpu", "cuda" or "cuda:n".
        hooks: observers and extensions.

    Attributes:
        trainer: what did the last training; None before.
    """

    def __init__(
        self,
        config: TrainingConfig | None = None,
        *,
        output_dir: str | Path | None = None,
        device: str = "auto",
        hooks: Sequence[Hook] = (),
    ) -> None:
        config = config or TrainingConfig()
        if config.strategy_for(ModelConfig()) == "standard" and config.strategy == "auto":
            config = config.model_copy(update={"strategy": "progressive"})
        self.config = config
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.device, self.hooks = device, hooks
        self.trainer: EnhancedTrainer | None = None

    def train_all_layers(
        self,
        dataloader: Iterable[Any],
        model_layers: torch.nn.Module | Sequence[torch.nn.Module],
        *,
        embedding: torch.nn.Module | None = None,
        head: torch.nn.Module | None = None,
        loss: Loss | None = None,
    ) -> TrainingState:
        """Train all of them, in the phases of the configuration.

        Args:
            dataloader: batches: a tensor (its own target), a pair of inputs and targets, or a
                mapping with `input_ids` and `labels`. A `DataLoader` is read in the order of this
                training's seed; any other iterable is read once, and kept.
            model_layers: a causal language model of transformers, whose layers are found by their
                structure; or a list of layers, each given what the one before gave.
            embedding: of a list: from inputs to what the first layer is given; None: as they are.
            head: of a list: from what any layer gives to what the loss is given; None: as it is.
            loss: of a list: a mean over the batch; None: cross-entropy for targets that are whole
                numbers, else the mean squared error.

        Returns:
            The state at the end; the layers have been trained in place.

        Raises:
            ValueError: layers, data and loss do not fit together; says how.
        """
        device = choose_device(self.device)
        model_config = ModelConfig(name="your layers")
        config = self.config
        adapter: ModelAdapter
        if isinstance(model_layers, torch.nn.Module) and hasattr(model_layers, "config"):
            if embedding or head or loss:
                raise ValueError(
                    "a whole model has its own embedding, head and loss: leave them out, or give"
                    " its layers alone"
                )
            rows = TokenRows(dataloader, config.seed)
            config = config.model_copy(update={"batch_size": rows.batch_size})
            adapter = GivenModelAdapter(model_layers, rows, model_config, config, device)
        else:
            if config.time_step_masking:
                raise ValueError(
                    "training.time_step_masking hides tokens of a language model: give"
                    " train_all_layers the model itself, not a list of its layers"
                )
            source = LoaderSource(dataloader, config.seed)
            config = config.model_copy(update={"batch_size": source.batch_size})
            layers = _layers_of(model_layers)
            example, _ = inputs_and_targets(source.collate([source.items[0]]))
            model = LayersModel(layers, embedding, head, example[:2])
            check_runs(model, example[:2])
            adapter = LayersAdapter(model, source, loss, model_config, config, device)
        trainer = self.trainer = EnhancedTrainer(
            model_config,
            config,
            DataConfig(),
            adapter,
            device=self.device,
            checkpoint_directory=self.output_dir and self.output_dir / "checkpoints",
            hooks=self.hooks,
        )
        trained = [(p, p.requires_grad) for p in trainer.initialize_model().parameters()]
        try:
            self._go_on(trainer)
            return trainer.train()
        finally:  # the layers are the caller's
            for parameter, was_trained in trained:
                parameter.requires_grad_(was_trained)

    def _go_on(self, trainer: EnhancedTrainer) -> None:
        """Take up what an earlier call left."""
        if self.output_dir is None:
            return
        saved = CheckpointManager(self.output_dir / "checkpoints").checkpoints()
        if saved:
            trainer.restore(saved[-1])


class TokenRows:
    """The rows of a loader's batches, as examples of a language model. All of them are kept.

    Raises:
        ValueError: the loader gives no rows of token ids.
    """

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        source = LoaderSource(loader, seed)
        batches = [rows_of(source.collate([item])) for item in source.items]
        self.examples = [row for rows in batches for row in rows]
        self.batch_size = source.batch_size * max(map(len, batches))
        self.seed, self.shuffles, self.fingerprint = seed, source.shuffles, source.fingerprint

    @property
    def num_examples(self) -> int:
        return len(self.examples)

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[Any], None, None]:
        count = len(self.examples)
        order = epoch_order(count, self.seed, epoch) if self.shuffles else range(count)
        for start in range(start_example, count, batch_size):
            yield [self.examples[int(i)] for i in order[start : start + batch_size]]

    def evaluation_batches(self, batch_size: int) -> Generator[Sequence[Any], None, None]:
        yield from ()


class GivenModelAdapter(StandardModelAdapter):
    """A causal language model that one has already, with rows of token ids."""

    def __init__(
        self,
        model: torch.nn.Module,
        rows: TokenRows,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        device: torch.device,
    ) -> None:
        super().__init__(model_config, training_config, device)
        self._given, self._rows_given = model, rows

    def initialize_model(self) -> torch.nn.Module:
        self.model = self._given.to(self.device)
        config: Any = getattr(self.model, "config")  # noqa: B009 (no attribute of every module)
        self.tokenizer = SimpleNamespace(pad_token_id=config.pad_token_id or 0)
        with choose_precision(self.training_config.mixed_precision, self.device).autocast():
            self._probe(self.model)
        return self.model

    def _masks(self, model: torch.nn.Module) -> MaskedObjective | None:
        """The last token of the vocabulary stands for a hidden one, unless the model names one."""
        config, size = self.training_config, token_embeddings(model).num_embeddings
        of_model: Any = model.config
        mask = getattr(of_model, "mask_token_id", None)
        special = [of_model.pad_token_id, of_model.bos_token_id]
        return objective_of(
            config,
            size - 1 if mask is None else mask,
            size,
            [token for token in special if token is not None],
        )

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        return self._rows_given


def rows_of(batch: Any) -> list[TokenizedExample]:
    """The rows of a batch: `input_ids` (B, L), and where given `labels` (-100: not learnt) and
    `attention_mask` (0: padding)."""
    ids, targets = inputs_and_targets(batch)
    if ids.is_floating_point() or ids.ndim != 2:
        raise ValueError(
            "a language model reads token ids of shape (batch, length); the data loader gives"
            f" {str(ids.dtype).removeprefix('torch.')}{list(ids.shape)}"
        )
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    learnt = keep if targets is ids else (targets != IGNORED) & keep
    return [
        TokenizedExample(row[kept].numpy().astype(np.int32), _supervised(marks[kept].numpy()))
        for row, marks, kept in zip(ids, learnt, keep, strict=True)
    ]


def _supervised(marks: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    marks = marks.copy()
    marks[:1] = False  # nothing predicts the first token
    return marks


def _layers_of(layers: torch.nn.Module | Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    if isinstance(layers, torch.nn.ModuleList | torch.nn.Sequential):
        layers = list(layers)
    if isinstance(layers, torch.nn.Module) or not layers:
        raise ValueError(
            "model_layers is a causal language model of transformers, or a list of layers with at"
            f" least one; this is {type(layers).__name__}"
        )
    return list(layers)


def check_runs(model: LayersModel, example: torch.Tensor) -> None:
    """Run the layers on the first batch.

    Raises:
        ValueError: they cannot be run on it; says what to give.
    """
    try:
        with torch.no_grad():
            model(example.to(next(model.parameters()).device))
    except (AssertionError, RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"the layers cannot be run on a batch of the data loader ({error}): give"
            " train_all_layers an embedding that makes of it what the first layer is given"
        ) from error
