"""The loss on held-out examples, measured without leaving a trace."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from infrastructure.backup.random_state import capture_random, restore_random
from infrastructure.training.error_handlers import Recovery, choose_recovery
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.precision import Precision


@dataclass
class HeldOutLoss:
    """Sums over held-out examples.

    Attributes:
        further: sums, over examples, of what the adapter's `compute_metrics` gives.
    """

    model: torch.nn.Module
    adapter: ModelAdapter
    precision: Precision
    loss_sum: float = 0.0
    num_items: int = 0
    num_examples: int = 0
    further: dict[str, float] = field(default_factory=dict)

    @torch.no_grad()
    def measure(self, batches: Iterable[Sequence[Any]]) -> dict[str, float]:
        """`eval_loss` per supervised item and the adapter's means; nothing of nothing."""
        with leaving_no_trace(self.model, self.adapter.device):
            for examples in batches:
                self._add(examples)
        if self.num_items == 0:
            return {}
        means = {name: total / self.num_examples for name, total in self.further.items()}
        return {"eval_loss": self.loss_sum / self.num_items, **means}

    def _add(self, examples: Sequence[Any]) -> None:
        """Take in examples, in smaller pieces if memory runs out."""
        try:
            loss_sum, num_items, metrics = self._measure_one(examples)
        except Exception as error:
            recovery = choose_recovery(error, len(examples), len(examples))
            if recovery is not Recovery.SMALLER_MICRO_BATCH:
                raise
        else:
            self.loss_sum += loss_sum
            self.num_items += num_items
            self.num_examples += len(examples)
            for name, mean in metrics.items():
                self.further[name] = self.further.get(name, 0.0) + mean * len(examples)
            return
        half = len(examples) // 2
        self._add(examples[:half])
        self._add(examples[half:])

    def _measure_one(self, examples: Sequence[Any]) -> tuple[float, int, dict[str, float]]:
        batch = self.adapter.prepare_batch(examples)
        with self.precision.autocast():
            output = self.adapter.compute_loss(self.model, batch)
        metrics = self.adapter.compute_metrics(self.model, batch)
        return float(output.loss_sum), output.num_items, metrics


@contextmanager
def leaving_no_trace(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards each module's mode and the random state
    are what they were, whatever happened."""
    random_state = capture_random(device)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training
        restore_random(random_state, device)
