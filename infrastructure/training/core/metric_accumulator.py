"""Sums over the steps since the last metrics record; tensors stay on the device until read."""

import math
from dataclasses import dataclass

import torch

Sum = torch.Tensor | float


@dataclass
class MetricAccumulator:
    """What the steps since the last record gave.

    Attributes:
        loss_sum: sum of the losses of all supervised items.
        num_items: supervised items.
        num_tokens: tokens, supervised or not.
        num_steps: optimizer steps.
        grad_norm: of the last step, before clipping.
        learning_rate: that the last step used.
        seconds: time that they took.
    """

    loss_sum: Sum = 0.0
    num_items: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    grad_norm: Sum = 0.0
    learning_rate: float = 0.0
    seconds: float = 0.0

    def add(self, step: "MetricAccumulator") -> None:
        """Take in one more step."""
        self.loss_sum = self.loss_sum + step.loss_sum
        self.num_items += step.num_items
        self.num_tokens += step.num_tokens
        self.num_steps += 1
        self.grad_norm, self.learning_rate = step.grad_norm, step.learning_rate

    @property
    def loss(self) -> float:
        """Mean loss per supervised item; reads the device."""
        return float(self.loss_sum) / max(1, self.num_items)

    def is_finite(self, has_scaler: bool) -> bool:
        """Whether loss and weights are numbers still; reads the device. With a loss scaler, an
        overflow of the gradients is its business and shows in the loss if it is not."""
        return math.isfinite(self.loss) and (has_scaler or math.isfinite(float(self.grad_norm)))

    def state_dict(self) -> dict[str, object]:
        """As JSON values, exact: a float32 is a float64 too. Numbers that are none are refused
        before anything is saved."""
        return {
            "loss_sum": float(self.loss_sum),
            "num_items": self.num_items,
            "num_tokens": self.num_tokens,
            "num_steps": self.num_steps,
            "grad_norm": _finite(float(self.grad_norm)),
            "learning_rate": self.learning_rate,
            "seconds": self.seconds,
        }


def _finite(value: float) -> float:
    """An overflow that a loss scaler skipped is infinite, which JSON has not."""
    return value if math.isfinite(value) else 0.0
