"""The contract between the loop and a model: how to feed it and how to read its loss.

An adapter knows one kind of model. It returns losses as sums over supervised items, so that the
strategy can divide by the items of the whole optimizer batch, however it was split.
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
    """Where examples come from. The order is a pure function of (seed, epoch).

    A source that knows the rows its examples are made of names them by a further method,
    `places(epoch, start_example, num_examples)`; else examples are named by their positions. One
    that knows which rows it holds out names them by an attribute, `held_out_identity`.
    """

    @property
    def num_examples(self) -> int:
        """Training examples in one epoch."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides which examples there are."""

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[object], None, None]:
        """Batches of one epoch from `start_example` on; the last one may be short."""

    def evaluation_batches(self, batch_size: int) -> Generator[Sequence[object], None, None]:
        """Batches of the held-out examples, always the same."""


class ModelAdapter(ABC):
    """How to talk to one kind of model.

    Life: constructed with its configuration, `initialize_model()` once, then for every micro-batch
    `prepare_batch` and `compute_loss`. Implementing the abstract methods is enough.

    Attributes:
        model: the model, once initialised.
        precision: the number format that it will train in, as its trainer says; fp32 without one.
        tokenizer: its tokenizer, or None for models that read no text.
        data_config: which data it will be fed, and in which form.
        saved_tokenizer: folder of the tokenizer that this run began with, when it is resumed.
        memory_config: limits of memory for whatever prepares its data.
        size_grid: how the lengths of its batches are rounded, where they vary.
        takes_token_functions: whether `compute_loss` computes `training.loss`, and `sum_metrics`
            what `training.metrics` names. Where not, both are refused.
        on_disk: the model is made with its weights on the disk, for a training that is spread over
            several processes and whose model none of them holds whole.
        lora_within: the part of the model whose layers a LoRA is beside; None: all of it.
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
        """Build or load the model, move it to the device, remember it as `self.model`."""

    def initialize_tokenizer(self) -> "PreTrainedTokenizerBase | None":
        """Load the tokenizer alone, as `self.tokenizer`: the data can be prepared with it before
        there is a model. None: the model reads no text, or the adapter cannot tell.

        Raises:
            ValueError: it cannot be loaded.
        """
        return None

    def weight_bytes(self) -> int | None:
        """What the model's weights take, before they are loaded; None: they cannot stay on the disk
        (`on_disk`)."""
        return None

    @abstractmethod
    def prepare_batch(self, examples: Sequence[Any]) -> Batch:
        """Turn examples into tensors on the device."""

    @abstractmethod
    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        """Sum of the losses of one prepared batch."""

    @abstractmethod
    def count_items(self, examples: Sequence[Any]) -> int:
        """Supervised items in `examples`, known before any forward pass."""

    @abstractmethod
    def count_tokens(self, examples: Sequence[Any]) -> int:
        """Real (never padding) tokens or other units of work in `examples`, for throughput."""

    def count_computed(self, examples: Sequence[Any]) -> int:
        """The same with the padding that a batch of `examples` has: what a step's memory is of."""
        return self.count_tokens(examples)

    def compute_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, float]:
        """Further held-out numbers of one batch, each a mean over its examples."""
        return {}

    def sum_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, tuple[float, int]]:
        """Further held-out numbers of one batch, each as a sum over items, and their number."""
        return {}

    @abstractmethod
    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        """Where this model's examples come from, ready to be read.

        Raises:
            ValueError, DataError: the data cannot be used.
        """

    def set_compiled(self, is_on: bool, mode: str = "default") -> None:
        """Compile what of the model takes the time, in place, or take that back."""
        assert self.model is not None
        set_compiled(self.model, is_on, mode)

    def describe(self) -> JsonObject:
        """What the model is, for run.json: name, parameters, backend."""
        return {"name": self.model_config.name}

    def note_added_weights(self) -> None:  # noqa: B027 (one's own may have nothing to note)
        """Extensions have attached weights to the model: what `describe` says is of both."""

    def notes(self) -> list[str]:
        """Sentences that a user should read before the training starts."""
        return []

    def save(self, directory: Path) -> None:
        """Write the trained model in the layout that its library reads.

        Raises:
            NotImplementedError: this kind of model cannot be saved on its own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no file layout of its own")
