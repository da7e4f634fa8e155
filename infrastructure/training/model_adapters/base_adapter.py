"""The contract between the loop and a model: the model's inputs and its loss.

An adapter handles one kind of model. It returns losses as sums over supervised items, so that the
strategy can divide by the items of the whole optimizer batch, however the batch was split.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.json_text import JsonObject
from infrastructure.optimization.compiling import set_compiled
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.core.precision import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, Any]


@dataclass
class LossOutput:
    """A differentiable sum of losses (scalar tensor) over `num_items` supervised items."""

    loss_sum: torch.Tensor
    num_items: int


class DataSource(Protocol):
    """A source of examples, whose order is a pure function of (seed, epoch).

    A source that knows the rows behind its examples names them with the further method
    `places(epoch, start_example, num_examples)`. Without it, examples are named by their positions.
    A source that can identify its held-out rows does so with the attribute `held_out_identity`.
    """

    @property
    def num_examples(self) -> int:
        """The number of training examples in one epoch."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the set of examples."""

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[object], None, None]:
        """Yield the batches of one epoch from `start_example` on. The last one may be short."""

    def evaluation_batches(self, batch_size: int) -> Generator[Sequence[object], None, None]:
        """Yield the batches of the held-out examples, always the same ones."""


class ModelAdapter(ABC):
    """The connection between the loop and one kind of model.

    An adapter is constructed with its configuration. The loop calls `initialize_model()` once, and
    then `prepare_batch` and `compute_loss` for every micro-batch. Implementing the abstract methods
    is enough.

    Attributes:
        model: the model, once initialized.
        precision: the number format that it will train in, set by its trainer. Otherwise fp32.
        tokenizer: its tokenizer, or None for models that read no text.
        data_config: the data section of its configuration.
        saved_tokenizer: folder of the tokenizer that this run began with, if the run is resumed.
        memory_config: memory limits for the preparation of its data.
        size_grid: how the lengths of its batches are rounded, if they vary.
        takes_token_functions: True if `compute_loss` computes `training.loss`, and `sum_metrics`
            computes `training.metrics`. If False, both settings are refused.
        on_disk: the model is created with its weights on disk, for a run that is spread over
            several processes, none of which holds the whole model.
        lora_within: the part of the model whose layers get LoRA. None: the whole model.
    """

    model_config: ModelConfig
    training_config: TrainingConfig
    device: torch.device
    precision: Precision
    model: torch.nn.Module | None
    tokenizer: "PreTrainedTokenizerBase | None"
    data_config: DataConfig
    saved_tokenizer: Path | None
    memory_config: MemoryConfig
    size_grid: SizeGrid
    takes_token_functions: bool = False
    on_disk: bool = False
    lora_within: str | None = None

    def __init__(
        self, model_config: ModelConfig, training_config: TrainingConfig, device: torch.device
    ) -> None:
        self.model_config = model_config
        self.training_config = training_config
        self.device = torch.device(device)
        self.precision = Precision("fp32", self.device.type)
        self.model = None
        self.tokenizer = None
        self.data_config = DataConfig()
        self.saved_tokenizer = None
        self.memory_config = MemoryConfig()
        self.size_grid = SizeGrid.EXACT

    @abstractmethod
    def initialize_model(self) -> torch.nn.Module:
        """Build or load the model, move it to the device, and store it as `self.model`."""

    def initialize_tokenizer(self) -> "PreTrainedTokenizerBase | None":
        """Load only the tokenizer, as `self.tokenizer`.

        The data can then be prepared before there is a model.

        Returns:
            The tokenizer. None if the model reads no text, or if the adapter cannot tell.

        Raises:
            ValueError: the tokenizer cannot be loaded.
        """
        return None

    def weight_bytes(self) -> int | None:
        """Return the size of the model's weights in bytes, before they are loaded.

        None if the weights cannot stay on disk (`on_disk`).
        """
        return None

    @abstractmethod
    def prepare_batch(self, examples: Sequence[Any]) -> Batch:
        """Convert examples to tensors on the device."""

    @abstractmethod
    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        """Return the sum of the losses of one prepared batch."""

    @abstractmethod
    def count_items(self, examples: Sequence[Any]) -> int:
        """Return the number of supervised items in `examples`, known before any forward pass."""

    @abstractmethod
    def count_tokens(self, examples: Sequence[Any]) -> int:
        """Return the number of tokens (never padding) or other units of work in `examples`.

        The count is used for throughput.
        """

    def count_computed(self, examples: Sequence[Any]) -> int:
        """Return `count_tokens`, but with the padding of a batch of `examples`.

        The memory of a step depends on this count.
        """
        return self.count_tokens(examples)

    def compute_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, float]:
        """Return further held-out metrics of one batch, each a mean over its examples."""
        return {}

    def sum_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, tuple[float, int]]:
        """Return further held-out metrics of one batch, each as a sum over items and a count."""
        return {}

    @abstractmethod
    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        """Return the source of this model's examples, ready to be read.

        Raises:
            ValueError, DataError: the data cannot be used.
        """

    def set_compiled(self, is_on: bool, mode: str = "default") -> None:
        """Compile the expensive part of the model in place, or undo that."""
        assert self.model is not None
        set_compiled(self.model, is_on, mode)

    def describe(self) -> JsonObject:
        """Return a description of the model for run.json: name, parameters, backend."""
        return {"name": self.model_config.name}

    def note_added_weights(self) -> None:  # noqa: B027 (an adapter may have nothing to note)
        """Update what `describe` returns after extensions have attached weights to the model."""

    def notes(self) -> list[str]:
        """Return sentences that the user should read before training starts."""
        return []

    def save(self, directory: Path) -> None:
        """Write the trained model in the layout that its library reads.

        Raises:
            NotImplementedError: this kind of model cannot be saved on its own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no file layout of its own")
