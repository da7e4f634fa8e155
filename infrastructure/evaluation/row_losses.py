"""The loss of each held-out row, from which intervals and comparisons are computed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from infrastructure.evaluation.generation import not_finite
from infrastructure.models.token_functions import cross_entropy
from infrastructure.training.forward.evaluation_loss import EvaluationLoss, Sums
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter


@dataclass(frozen=True)
class RowLoss:
    """The loss of one row: the sum of cross-entropies, and the number of correct tokens."""

    loss_sum: float
    num_right: int
    num_tokens: int


@dataclass
class RowLosses(EvaluationLoss):
    """The evaluation loss, computed as during training, with the loss of each row.

    Attributes:
        rows: the loss of each example, in order; empty if the model does not predict next tokens.
        name: the name of the model, for the error if a loss is NaN.
    """

    rows: list[RowLoss] = field(default_factory=list)
    name: str = ""

    def _measure_one(self, examples: Sequence[Any]) -> tuple[float, int, Sums]:
        measured = super()._measure_one(examples)
        losses = [measured[0]]
        if predicts_next_token(self.adapter):
            rows = self._rows_of(examples)
            self.rows += rows
            losses += [row.loss_sum for row in rows]
        if any(map(math.isnan, losses)):
            raise not_finite(self.model, self.name)
        return measured

    def _rows_of(self, examples: Sequence[Any]) -> list[RowLoss]:
        assert isinstance(self.adapter, StandardModelAdapter)
        tokens = _Tokens()
        batch = self.adapter.prepare_batch(examples)
        with self.precision.autocast():
            self.adapter.token_loss.metric_sums(
                self.model, batch, {"": tokens}, self.adapter.size_grid
            )
        counts = [self.adapter.count_items([example]) for example in examples]
        losses, right = (
            torch.cat(tokens.losses).split(counts),
            torch.cat(tokens.right).split(counts),
        )
        return [
            RowLoss(float(of_row.sum()), int(hits.sum()), count)
            for of_row, hits, count in zip(losses, right, counts, strict=True)
        ]


def predicts_next_token(adapter: object) -> bool:
    """Return whether the model's loss is the usual next-token loss, a sum over tokens."""
    return isinstance(adapter, StandardModelAdapter) and adapter.objective is None


class _Tokens:
    """A stand-in for a metric, which records its arguments for each token, in order."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.right: list[torch.Tensor] = []

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.losses.append(cross_entropy(logits, targets).double().cpu())
        self.right.append((logits.argmax(dim=-1) == targets).cpu())
        return torch.zeros_like(targets, dtype=torch.float32)
