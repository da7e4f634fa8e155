"""The interface between the training loop and a model: its inputs and its loss.

An adapter handles one kind of model. It returns losses as sums over supervised items. The strategy
divides them by the number of items in the whole optimizer batch, so that splitting the batch does
not matter.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.json_text import JsonObject
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.packed_attention import attention_form
from infrastructure.optimization.compiling import set_compiled
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.core.precision import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class HiddenTokens(Protocol):
    """An example with some tokens hidden, and the hidden tokens as targets.

    Attributes:
        input_ids: token IDs with the hidden ones replaced, int32 (n,).
        positions: positions of the hidden tokens, ascending, int64 (k,).
        targets: the original tokens at these positions, int64 (k,).
        weight: weight of the loss of each hidden token.
    """

    @property
    def input_ids(self) -> npt.NDArray[np.int32]: ...

    @property
    def positions(self) -> npt.NDArray[np.int64]: ...

    @property
    def targets(self) -> npt.NDArray[np.int64]: ...

    @property
    def weight(self) -> float: ...


class Objective(Protocol):
    """An objective that hides tokens for the model to predict; `Feature.objective` creates it.

    Attributes:
        corruption: the name of what replaces hidden tokens.
        weighting: "none" if all hidden tokens have the same weight.
        vocabulary: its `ordinary` are the tokens that may be hidden.
        time_step, draw: set by the strategy.
    """

    corruption: str
    weighting: str
    vocabulary: Any
    time_step: int | None
    draw: int

    def check_model(self, model: torch.nn.Module) -> None:
        """Raise ValueError if the model cannot attend in both directions."""

    def mask(self, example: TokenizedExample, *, held_out: bool = False) -> HiddenTokens:
        """Hide tokens of an example; in a held-out example, always the same tokens."""

    def count_items(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        """Return the example's number of items. The loss is divided by the sum of these numbers."""


Batch = dict[str, Any]


@dataclass
class LossOutput:
    """The sum of the losses over `num_items` supervised items, a differentiable scalar tensor."""

    loss_sum: torch.Tensor
    num_items: int


class DataSource(Protocol):
    """The interface of a source of examples, whose order depends only on seed and epoch.

    Two further members are optional. `places(epoch, start_example, num_examples)` returns the names
    of the rows behind examples, which are otherwise named by their positions. The attribute
    `held_out_identity` is a hash of the held-out rows.
    """

    @property
    def num_examples(self) -> int:
        """The number of training examples in one epoch."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the examples."""

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[object], None, None]:
        """Yield the batches of one epoch from `start_example` on. The last batch may be smaller."""

    def evaluation_batches(self, batch_size: int) -> Generator[Sequence[object], None, None]:
        """Yield batches of the held-out examples, which are the same in every evaluation."""


def held_out_identity(data: DataSource) -> str | None:
    """Return a hash of the held-out rows; None if the data source has none."""
    identity: str | None = getattr(data, "held_out_identity", None)
    return identity


class ModelAdapter(ABC):
    """Base class for the connection between the training loop and one kind of model.

    The loop calls `initialize_model()` once, and then `prepare_batch` and `compute_loss` for every
    micro-batch. Only the abstract methods must be implemented.

    Attributes:
        model: the model, once initialized.
        precision: the precision of the training, set by the trainer; fp32 before that.
        tokenizer: the model's tokenizer, or None for models that read no text.
        data_config: the data section of the configuration.
        saved_tokenizer: folder of the tokenizer that the run began with, if it is resumed.
        memory_config: memory limits for the preparation of data.
        size_grid: how the lengths of batches are rounded up.
        takes_token_functions: True if `compute_loss` computes `training.loss`, and `sum_metrics`
            computes `training.metrics`. If False, both settings are rejected.
        on_disk: True: leave the weights on disk, because the model will be sharded, and no process
            has the memory for all of it.
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
        """Load the tokenizer without the model, store it as `self.tokenizer` and return it.

        This makes it possible to prepare the data before the model is loaded.

        Returns:
            The tokenizer. None if the model reads no text, or if the adapter does not support this.

        Raises:
            ValueError: the tokenizer cannot be loaded.
        """
        return None

    def weight_bytes(self) -> int | None:
        """Return the size of the model's weights in bytes, without loading them.

        None if this adapter cannot leave the weights on disk (`on_disk`).
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
        """Return the number of supervised items in `examples`, without a forward pass."""

    @abstractmethod
    def count_tokens(self, examples: Sequence[Any]) -> int:
        """Return the number of tokens (without padding) or other units of work in `examples`.

        It is used for throughput.
        """

    def count_computed(self, examples: Sequence[Any]) -> int:
        """Return the number of tokens in a batch of `examples`, including padding.

        The memory of a step depends on this number.
        """
        return self.count_tokens(examples)

    def compute_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, float]:
        """Return further held-out metrics of one batch, each as a mean over its examples."""
        return {}

    def sum_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, tuple[float, int]]:
        """Return further held-out metrics of one batch, as pairs (sum over items, items)."""
        return {}

    @abstractmethod
    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        """Create the data source of this model's examples.

        Raises:
            ValueError, DataError: the data cannot be used.
        """

    def set_compiled(self, is_on: bool, mode: str = "default") -> None:
        """Compile the expensive part of the model in place, or undo the compilation."""
        assert self.model is not None
        set_compiled(self.model, is_on, mode)

    def attention_form(self, model: torch.nn.Module) -> str:
        """Return the name of the model's attention implementation, which affects rounding."""
        dtype, step = self.precision.dtype, self.size_grid.segment_step
        return attention_form(model, self.device, dtype, step)

    def describe(self) -> JsonObject:
        """Return a description of the model for run.json: name, parameters, backend."""
        return {"name": self.model_config.name}

    def note_added_weights(self) -> None:  # noqa: B027 (an adapter may have nothing to note)
        """Update the model's description after extensions have added weights to the model."""

    def notes(self) -> list[str]:
        """Return notes to show to the user before training starts."""
        return []

    def save(self, directory: Path) -> None:
        """Save the trained model in the format that its library reads.

        Raises:
            NotImplementedError: this kind of model cannot be saved.
        """
        raise NotImplementedError(f"{type(self).__name__} has no file layout of its own")
