"""An adapter that trains any list of layers as a model, with any loader of batches as its data.

It is for users who have layers and a PyTorch loader, but neither a transformers model nor a data
file.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.data.serving.example_order import epoch_order
from infrastructure.training.model_adapters.base_adapter import (
    Batch,
    DataSource,
    LossOutput,
    ModelAdapter,
)

Loss = Callable[[torch.Tensor, object], torch.Tensor]
NUM_HASHED = 64  # items in a fingerprint, if the items are not in memory
IGNORED = -100


class LayersModel(torch.nn.Module):
    """A model that consists of an embedding, layers in sequence, and a head.

    Args:
        layers: each gets the output of the layer before. All outputs have one shape.
        embedding: maps a batch's inputs to the input of the first layer. None: the inputs
            unchanged.
        head: maps the output of the last layer to the input of the loss. None: the output
            unchanged.
        probe_input: a small batch of inputs with which the model can be measured.
    """

    def __init__(
        self,
        layers: Iterable[torch.nn.Module],
        embedding: torch.nn.Module | None,
        head: torch.nn.Module | None,
        probe_input: torch.Tensor,
    ) -> None:
        super().__init__()
        self.embedding = torch.nn.Identity() if embedding is None else embedding
        self.layers = torch.nn.ModuleList(layers)
        self.head = torch.nn.Identity() if head is None else head
        self.register_buffer("probe_input", probe_input, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(inputs)
        for layer in self.layers:
            hidden = layer(hidden)
        output: torch.Tensor = self.head(hidden)
        return output


class LoaderSource:
    """A data source that yields the batches of a loader, in an order that a resumed run repeats.

    A `DataLoader` over a data set with a length is read item by item in this process, and shuffled
    with the run's seed if the loader shuffles. Any other iterable is read once and its batches are
    kept. Each batch is then one example.

    Raises:
        ValueError: there is no batch.
    """

    def __init__(self, loader: Iterable[object], seed: int) -> None:
        self.seed = seed
        self.batch_size = 1
        self.collate: Callable[[list[object]], object] = lambda items: items[0]
        self.shuffles = False
        if _has_items(loader):
            self.items: Any = loader.dataset
            self.batch_size = loader.batch_size or 1
            self.collate = loader.collate_fn
            self.shuffles = isinstance(loader.sampler, RandomSampler)
        else:
            self.items = _kept(loader, seed)
        count = len(self.items)
        drops_last = getattr(loader, "drop_last", False)
        self.num_examples = count - count % self.batch_size if drops_last else count
        if self.num_examples == 0:
            raise InputError("stackwise.data_loader_empty")

    def first_batch(self) -> object:
        """Return one batch, so that its structure can be inspected."""
        return self.collate([self.items[i] for i in range(min(self.batch_size, len(self.items)))])

    @property
    def fingerprint(self) -> str:
        """A hash of the number of items and of their contents, or of a sample of them."""
        count = len(self.items)
        digest = hashlib.sha256(f"{count} {self.num_examples} {self.shuffles}".encode())
        in_memory = isinstance(self.items, list | tuple | TensorDataset)
        hashed = count if in_memory else min(count, NUM_HASHED)
        for index in range(hashed):
            for part in _contents(self.items[index * count // hashed]):
                digest.update(part)
        return digest.hexdigest()

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[object], None, None]:
        count, end = len(self.items), self.num_examples
        order = epoch_order(count, self.seed, epoch) if self.shuffles else range(count)
        for start in range(start_example, end, batch_size):
            yield [self.items[int(i)] for i in order[start : min(start + batch_size, end)]]

    def evaluation_batches(self, batch_size: int) -> Generator[Sequence[object], None, None]:
        yield from ()


class LayersAdapter(ModelAdapter):
    """An adapter that trains a `LayersModel` on the batches of a `LoaderSource`.

    Args:
        source: the data.
        loss: maps the head's output and the batch's targets to a mean over the batch. None:
            `default_loss`.
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
        self._layers_model, self._source, self._loss = model, source, loss

    def initialize_model(self) -> torch.nn.Module:
        self.model = self._layers_model.to(self.device)
        return self.model

    def prepare_batch(self, examples: Sequence[object]) -> Batch:
        inputs, targets = self._batch_of(examples)
        return {
            "inputs": inputs.to(self.device),
            "targets": targets.to(self.device) if isinstance(targets, torch.Tensor) else targets,
            "num_items": self._count(inputs, targets),
        }

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        output, targets, num_items = model(batch["inputs"]), batch["targets"], batch["num_items"]
        if self._loss is None:
            return LossOutput(default_loss(output, targets), num_items)
        mean = self._loss(output, targets)
        if not isinstance(mean, torch.Tensor) or mean.ndim:
            shape = f"a tensor {list(mean.shape)}" if isinstance(mean, torch.Tensor) else mean
            raise InputError("stackwise.loss_not_a_scalar", returned=shape)
        return LossOutput(mean * num_items, num_items)

    def count_items(self, examples: Sequence[object]) -> int:
        return self._count(*self._batch_of(examples))

    def count_tokens(self, examples: Sequence[object]) -> int:
        return len(self._batch_of(examples)[0])

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        return self._source

    def _batch_of(self, examples: Sequence[object]) -> tuple[torch.Tensor, object]:
        return inputs_and_targets(self._source.collate(list(examples)))

    def _count(self, inputs: torch.Tensor, targets: object) -> int:
        """Return the number of targets over which the loss is a mean.

        Without integer targets, or with a custom loss, this is the number of rows.
        """
        if self._loss is None and isinstance(targets, torch.Tensor) and _is_whole(targets):
            return int((targets != IGNORED).sum())
        return len(inputs)


def inputs_and_targets(batch: object) -> tuple[torch.Tensor, object]:
    """Split a batch into the model's input and the targets of the loss.

    If a batch contains only inputs, they are also the targets.

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
    elif (
        isinstance(batch, Sequence) and len(batch) in (1, 2) and isinstance(batch[0], torch.Tensor)
    ):
        return batch[0], batch[-1]
    raise InputError("stackwise.batch_type_unknown", batch=_described(batch))


def _described(batch: object) -> str:
    name = f"of type {type(batch).__name__}"
    if isinstance(batch, Mapping):
        return f"{name} with {', '.join(map(str, batch)) or 'nothing'}"
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return f"{name}, with {', '.join(type(one).__name__ for one in batch) or 'nothing'}"
    return name


def default_loss(output: torch.Tensor, targets: object) -> torch.Tensor:
    """Return the loss of a batch as a sum.

    Integer targets give the sum of the cross-entropies over the last dimension; targets of -100 are
    ignored. Other targets give the sum of each row's mean squared error.

    Raises:
        ValueError: the shapes do not match. The message contains both.
    """
    if not isinstance(targets, torch.Tensor):
        raise InputError("stackwise.targets_not_a_tensor")
    if output.dtype in (torch.bfloat16, torch.float16):
        output = output.float()
    if _is_whole(targets) and targets.shape == output.shape[:-1]:
        rows, classes = output.flatten(0, -2), targets.flatten().long()
        return F.cross_entropy(rows, classes, ignore_index=IGNORED, reduction="sum")
    if targets.is_floating_point() and targets.shape == output.shape:
        return F.mse_loss(output, targets) * len(output)
    raise InputError(
        "stackwise.targets_shape_mismatch",
        targets_shape=tuple(targets.shape),
        output_shape=tuple(output.shape),
    )


def _is_whole(targets: torch.Tensor) -> bool:
    return not targets.is_floating_point() and not targets.is_complex()


def _has_items(loader: object) -> "TypeGuard[DataLoader[object]]":
    """Return whether `loader` is a PyTorch loader that reads each item of a data set once."""
    if not isinstance(loader, DataLoader) or loader.batch_size is None:
        return False
    data, sampler = loader.dataset, loader.sampler
    if not isinstance(data, Sized) or not hasattr(data, "__getitem__"):
        return False
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(data)
    return type(sampler) is SequentialSampler


def _kept(loader: Iterable[object], seed: int) -> list[object]:
    """Read all batches of a loader, with the same PyTorch random numbers each time."""
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise InputError("stackwise.not_a_data_loader", loader=_described(loader))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return list(loader)


def _contents(value: object) -> Iterator[bytes]:
    """Yield bytes that identify the content of an item."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        yield f"{tuple(value.shape)} {value.dtype}".encode()
        yield value.flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.shape} {value.dtype}".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield repr(key).encode()
            yield from _contents(one)
    elif isinstance(value, str | bytes | int | float | np.generic | None):
        yield repr(value).encode()
    elif isinstance(value, Sequence | np.ndarray):
        for one in value:
            yield from _contents(one)
