"""Sums of metrics since the last log record. Tensors stay on the device until they are read."""

import math
from dataclasses import dataclass

import torch

Sum = torch.Tensor | float


@dataclass
class MetricAccumulator:
    """Sums of metrics over the steps since the last log record.

    Attributes:
        loss_sum: sum of the losses of all supervised items.
        num_items: number of supervised items.
        num_tokens: number of tokens, supervised or not.
        num_steps: number of optimizer steps.
        grad_norm: gradient norm of the last step, before clipping.
        learning_rate: learning rate of the last step.
        seconds: total duration of the steps.
    """

    loss_sum: Sum = 0.0
    num_items: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    grad_norm: Sum = 0.0
    learning_rate: float = 0.0
    seconds: float = 0.0

    def add(self, step: "MetricAccumulator") -> None:
        """Add the metrics of one more step."""
        self.loss_sum = self.loss_sum + step.loss_sum
        self.num_items += step.num_items
        self.num_tokens += step.num_tokens
        self.num_steps += 1
        self.grad_norm, self.learning_rate = step.grad_norm, step.learning_rate

    @property
    def loss(self) -> float:
        """Mean loss per supervised item. Reading it synchronizes with the device."""
        return float(self.loss_sum) / max(1, self.num_items)

    def is_finite(self, has_scaler: bool) -> bool:
        """Return whether loss and gradient norm are finite. Synchronizes with the device.

        The gradient norm is ignored if there is a loss scaler, which handles overflows itself.
        """
        return math.isfinite(self.loss) and (has_scaler or math.isfinite(float(self.grad_norm)))

    def state_dict(self) -> dict[str, object]:
        """Return the sums as JSON values, without rounding."""
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
    """Return `value`, or 0 if it is not finite, because JSON has no infinity."""
    return value if math.isfinite(value) else 0.0
