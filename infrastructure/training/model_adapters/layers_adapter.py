"""Any list of layers as a model, and any loader of batches as its data.

For whoever has layers and a PyTorch loader, and neither a transformers model nor a data file.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from infrastructure.config.model_config import ModelConfig
from infrastructure.config.resource_config import CacheConfig
from infrastructure.config.training_config import TrainingConfig
from infrastructure.training.data.order import epoch_order
from infrastructure.training.model_adapters.base_adapter import (
    Batch,
    DataSource,
    LossOutput,
    ModelAdapter,
)

Loss = Callable[[torch.Tensor, Any], torch.Tensor]
NUM_HASHED = 64  # items of a large data set that its fingerprint is made of


class LayersModel(torch.nn.Module):
    """Embedding, layers one after the other, head.

    Args:
        layers: each is given what the one before gave, of one shape.
        embedding: from a batch's inputs to what the first layer is given; None: as they are.
        head: from what the last layer gave to what the loss is given; None: as it is.
        probe_input: one small batch of inputs, to look at the model with.
    """

    def __init__(
        self,
        layers: Iterable[torch.nn.Module],
        embedding: torch.nn.Module | None,
        head: torch.nn.Module | None,
        probe_input: torch.Tensor,
    ) -> None:
        super().__init__()
        self.embedding = embedding or torch.nn.Identity()
        self.layers = torch.nn.ModuleList(layers)
        self.head = head or torch.nn.Identity()
        self.register_buffer("probe_input", probe_input, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(inputs)
        for layer in self.layers:
            hidden = layer(hidden)
        output: torch.Tensor = self.head(hidden)
        return output


class LoaderSource:
    """Batches of a loader as a data source: in an order that a resumed training has again.

    A `DataLoader` over a data set that has a length is read by its items, shuffled by the
    training's seed where the loader shuffles. Any other iterable is read once, and its batches are
    kept: each is then one example.

    Raises:
        ValueError: there is no batch.
    """

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        self.seed = seed
        self.batch_size = 1
        self.collate: Callable[[list[Any]], Any] = lambda items: items[0]
        self.shuffles = False
        if _has_items(loader):
            self.items: Any = loader.dataset  # type: ignore[attr-defined]
            self.batch_size = loader.batch_size  # type: ignore[attr-defined]
            self.collate = loader.collate_fn  # type: ignore[attr-defined]
            self.shuffles = isinstance(loader.sampler, RandomSampler)  # type: ignore[attr-defined]
        else:
            self.items = list(loader)
        if len(self.items) == 0:
            raise ValueError("the data loader gives no batch: there is nothing to train on")

    @property
    def num_examples(self) -> int:
        return len(self.items)

    @property
    def fingerprint(self) -> str:
        """Of the number of items, and of some of them, evenly spread."""
        count = len(self.items)
        digest = hashlib.sha256(f"{count} {self.shuffles}".encode())
        for index in sorted({i * count // NUM_HASHED for i in range(NUM_HASHED)}):
            for tensor in _tensors(self.items[index]):
                digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[Any], None, None]:
        count = len(self.items)
        order = epoch_order(count, self.seed, epoch) if self.shuffles else range(count)
        for start in range(start_example, count, batch_size):
            yield [self.items[int(i)] for i in order[start : start + batch_size]]

    def evaluation_batches(self, batch_size: int) -> Generator[Sequence[Any], None, None]:
        yield from ()


class LayersAdapter(ModelAdapter):
    """Feeds a `LayersModel` from a `LoaderSource`.

    Args:
        source: the data.
        loss: of the head's output and the batch's targets: a mean over the batch.
    """

    def __init__(
        self,
        model: LayersModel,
        source: LoaderSource,
        loss: Loss | None,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        device: torch.device,
    ) -> None:
        super().__init__(model_config, training_config, device)
        self._layers_model, self._source = model, source
        self.loss = loss or default_loss

    def initialize_model(self) -> torch.nn.Module:
        self.model = self._layers_model.to(self.device)
        return self.model

    def prepare_batch(self, examples: Sequence[Any]) -> Batch:
        inputs, targets = inputs_and_targets(self._source.collate(list(examples)))
        return {
            "inputs": inputs.to(self.device),
            "targets": targets.to(self.device) if isinstance(targets, torch.Tensor) else targets,
        }

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        num_items = len(batch["inputs"])
        return LossOutput(
            self.loss(model(batch["inputs"]), batch["targets"]) * num_items, num_items
        )

    def count_items(self, examples: Sequence[Any]) -> int:
        return len(self.prepare_batch(examples)["inputs"])

    def count_tokens(self, examples: Sequence[Any]) -> int:
        return self.count_items(examples)

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        return self._source


def inputs_and_targets(batch: Any) -> tuple[torch.Tensor, Any]:
    """What the model is given, and what the loss compares with; the inputs themselves where a batch
    holds nothing else.

    Raises:
        ValueError: the batch is neither a tensor, a pair, nor a mapping with inputs and targets.
    """
    if isinstance(batch, torch.Tensor):
        return batch, batch
    if isinstance(batch, Mapping):
        inputs = next((batch[k] for k in ("inputs", "input_ids", "x") if k in batch), None)
        targets = next((batch[k] for k in ("targets", "labels", "y") if k in batch), inputs)
        if isinstance(inputs, torch.Tensor):
            return inputs, targets
    elif _is_pair(batch):
        return batch[0], batch[-1]
    raise ValueError(
        "a batch of the data loader is a tensor, a pair of inputs and targets, or a mapping with"
        f" input_ids and labels; this one is {type(batch).__name__}"
    )


def _is_pair(batch: Any) -> bool:
    is_short = isinstance(batch, Sequence) and len(batch) in (1, 2)
    return is_short and isinstance(batch[0], torch.Tensor)


def default_loss(output: torch.Tensor, targets: Any) -> torch.Tensor:
    """Cross-entropy over the last dimension for targets that are whole numbers (-100: not counted),
    else the mean squared error.

    Raises:
        ValueError: their shapes do not fit together; names both.
    """
    if not isinstance(targets, torch.Tensor):
        raise ValueError("the targets of a batch are no tensor: give train_all_layers a loss")
    if not targets.is_floating_point() and targets.shape == output.shape[:-1]:
        return F.cross_entropy(output.flatten(0, -2), targets.flatten())
    if targets.is_floating_point() and targets.shape == output.shape:
        return F.mse_loss(output, targets)
    raise ValueError(
        f"targets of shape {tuple(targets.shape)} do not fit what the last layer gives,"
        f" {tuple(output.shape)}: give train_all_layers a head, or a loss"
    )


def _has_items(loader: Any) -> bool:
    """Whether it is a PyTorch loader whose data set can be read in any order."""
    return (
        isinstance(loader, DataLoader)
        and isinstance(loader.dataset, Sized)
        and hasattr(loader.dataset, "__getitem__")
        and loader.batch_size is not None
        and isinstance(loader.sampler, RandomSampler | SequentialSampler)
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, int | float):
        yield torch.tensor(value)
