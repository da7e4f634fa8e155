"""Sums over the steps since the last metrics record; tensors stay on the device until read."""

import math
from dataclasses import dataclass

import torch

Sum = torch.Tensor | float


@dataclass
class MetricAccumulator:
    """Sums over the steps since the last record.

    Attributes:
        loss_sum: sum of the losses of all supervised items.
        num_items: supervised items.
        num_tokens: tokens, supervised or not.
        num_steps: optimizer steps.
        grad_norm: gradient norm of the last step, before clipping.
        learning_rate: used in the last step.
        seconds: duration of the steps.
    """

    loss_sum: Sum = 0.0
    num_items: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    grad_norm: Sum = 0.0
    learning_rate: float = 0.0
    seconds: float = 0.0

    def add(self, step: "MetricAccumulator") -> None:
        """Add one more step."""
        self.loss_sum = self.loss_sum + step.loss_sum
        self.num_items += step.num_items
        self.num_tokens += step.num_tokens
        self.num_steps += 1
        self.grad_norm, self.learning_rate = step.grad_norm, step.learning_rate

    @property
    def loss(self) -> float:
        """Mean loss per supervised item. Synchronizes with the device."""
        return float(self.loss_sum) / max(1, self.num_items)

    def is_finite(self, has_scaler: bool) -> bool:
        """Return whether loss and gradient norm are finite. Synchronizes with the device.

        With a loss scaler the gradient norm is ignored: the scaler handles overflows of the
        gradients, and an overflow that it misses shows in the loss.
        """
        return math.isfinite(self.loss) and (has_scaler or math.isfinite(float(self.grad_norm)))

    def state_dict(self) -> dict[str, object]:
        """Return the sums as JSON values, which are exact because a float32 is also a float64.

        A loss that is not finite is refused before anything is saved.
        """
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
    """Return `value`, or 0 if it is infinite, which JSON cannot hold (an overflow that a loss
    scaler skipped)."""
    return value if math.isfinite(value) else 0.0
