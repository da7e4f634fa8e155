"""The loss on held-out examples, measured without changing the training state."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch

from infrastructure.core.callbacks import do_nothing
from infrastructure.models.preserve import preserve
from infrastructure.optimization.device_errors import (
    can_be_halved,
    free_memory,
    release_traceback,
)
from infrastructure.training.core.precision import Precision
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter

Sums = dict[str, tuple[float, int]]  # name to sum and count


@dataclass
class EvaluationLoss:
    """A measurement of the loss and other metrics on held-out examples.

    Attributes:
        may_halve: use smaller batches after running out of memory.
        on_smaller: called with the batch size, and the reason, when batches get smaller.
        most: maximum number of examples per batch. None: as the data source yields them.
        further: sums and counts of the results of the adapter's `compute_metrics` (over examples)
            and `sum_metrics` (over items).
    """

    model: torch.nn.Module
    adapter: ModelAdapter
    precision: Precision
    may_halve: bool = True
    on_smaller: Callable[[int, str], None] = do_nothing
    most: int | None = None
    loss_sum: float = 0.0
    num_items: int = 0
    further: Sums = field(default_factory=dict)

    @torch.no_grad()
    def measure(self, batches: Iterable[Sequence[object]]) -> dict[str, float]:
        """Return `eval_loss` per supervised item and the means of the adapter's metrics.

        The result is empty if there are no supervised items.
        """
        with preserve(self.model, random=self.adapter.device, modes=True):
            self.model.eval()
            for examples in batches:
                self._add(examples)
        if self.num_items == 0:
            return {}
        means = {name: total / max(1, count) for name, (total, count) in self.further.items()}
        return {"eval_loss": self.loss_sum / self.num_items, **means}

    def _add(self, examples: Sequence[object]) -> None:
        """Measure examples and add the results; use smaller batches after running out of memory."""
        start = 0
        while start < len(examples):
            piece = examples[start : start + (self.most or len(examples))]
            if self._add_piece(piece):
                start += len(piece)
            else:
                free_memory(self.adapter.device)

    def _add_piece(self, examples: Sequence[object]) -> bool:
        """Measure one batch, and return False if it did not fit into memory.

        In that case, halve the size of later batches.
        """
        try:
            loss_sum, num_items, metrics = self._measure_one(examples)
        except Exception as error:
            if not self.may_halve or not can_be_halved(error, len(examples), len(examples)):
                raise
            release_traceback(error)
            self.most = len(examples) // 2
            self.on_smaller(self.most, str(error))
            return False
        self.loss_sum += loss_sum
        self.num_items += num_items
        for name, (total, count) in metrics.items():
            before, counted = self.further.get(name, (0.0, 0))
            self.further[name] = before + total, counted + count
        return True

    def _measure_one(self, examples: Sequence[object]) -> tuple[float, int, Sums]:
        batch = self.adapter.prepare_batch(examples)
        with self.precision.autocast():
            output = self.adapter.compute_loss(self.model, batch)
            sums = self.adapter.sum_metrics(self.model, batch)
        means, count = self.adapter.compute_metrics(self.model, batch), len(examples)
        of_examples = {name: (mean * count, count) for name, mean in means.items()}
        return float(output.loss_sum), output.num_items, {**of_examples, **sums}


def perplexity(loss: float) -> float:
    """Return the perplexity for a mean loss per token in nats."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def with_polling(batches: Iterator[object], poll: Callable[[], None]) -> Iterator[Any]:
    """Yield the batches, and call `poll` before each of them."""
    with closing(batches):  # type: ignore[type-var]
        for batch in batches:
            poll()
            yield batch


def holds_out(data: DataSource) -> bool:
    """Return whether the data source has held-out examples."""
    with closing(data.evaluation_batches(1)) as batches:
        return next(batches, None) is not None
