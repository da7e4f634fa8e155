"""A model, an adapter and a data source small enough to reason about, with real dropout."""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch

from infrastructure.training.model_adapters.base_adapter import LossOutput, ModelAdapter

NUM_FEATURES = 4


class ToyModel(torch.nn.Module):
    """Two linear layers with dropout between; `forward` takes no keyword arguments."""

    def __init__(self, seed: int = 0, dropout: float = 0.2) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = torch.nn.Linear(NUM_FEATURES, 8)
        self.dropout = torch.nn.Dropout(dropout)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(torch.tanh(self.inner(features)))).squeeze(-1)


class ToyAdapter(ModelAdapter):
    """Squared error; example k has k % 5 + 1 supervised items, so that lengths differ."""

    def __init__(self, training_config: Any, model: torch.nn.Module | None = None) -> None:
        super().__init__(None, training_config, torch.device("cpu"))  # type: ignore[arg-type]
        self.model = model or ToyModel()
        self.fail_above: int | None = None
        self.poison_example: int | None = None

    def initialize_model(self) -> torch.nn.Module:
        assert self.model is not None
        return self.model

    def prepare_batch(self, examples: Sequence[int]) -> dict[str, Any]:
        rows = [item for example in examples for item in items_of(example)]
        features = torch.tensor(np.array(rows), dtype=torch.float32)
        if self.poison_example in examples:
            features[0, 0] = float("nan")
        return {"features": features, "num_examples": len(examples)}

    def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> LossOutput:
        if self.fail_above is not None and batch["num_examples"] > self.fail_above:
            raise torch.OutOfMemoryError("CUDA out of memory: planted")
        target = batch["features"].sum(dim=1)
        losses = (model(batch["features"]) - target) ** 2
        return LossOutput(losses.sum(), losses.numel())

    def count_items(self, examples: Sequence[int]) -> int:
        return sum(example % 5 + 1 for example in examples)

    def count_tokens(self, examples: Sequence[int]) -> int:
        return self.count_items(examples)

    def create_data_source(self, cache_config: Any, seed: int) -> "ToySource":
        return ToySource()


def items_of(example: int) -> np.ndarray:
    return np.random.RandomState(example).randn(example % 5 + 1, NUM_FEATURES)


class ToySource:
    """Examples are integers; the order is a pure function of the epoch."""

    fingerprint = "toy"

    def __init__(self, num_examples: int = 20) -> None:
        self.num_examples = num_examples
        self.seen: list[int] = []

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[int], None, None]:
        order = np.random.RandomState(epoch).permutation(self.num_examples)
        for start in range(start_example, self.num_examples, batch_size):
            batch = [int(example) for example in order[start : start + batch_size]]
            self.seen += batch
            yield batch

    def evaluation_batches(self, batch_size: int) -> Generator[Sequence[int], None, None]:
        yield list(range(1000, 1000 + batch_size))
