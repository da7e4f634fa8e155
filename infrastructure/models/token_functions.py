"""Losses and metrics per token, built-in and user-defined, by name.

A function gets logits (N, V) in fp32 and target IDs (N,) of trained tokens only, and returns one
number per token, (N,). Masked tokens are therefore never trained on, whatever the function
computes, and the gradient does not depend on how a batch is split. Sums and means over tokens are
computed elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from infrastructure.config import registries
from infrastructure.config.measures import TOKEN_ACCURACY
from infrastructure.core.error_place import place_of
from infrastructure.core.errors import InputError
from infrastructure.core.registry import Registry

TokenFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

CROSS_ENTROPY = "cross_entropy"


class TokenFunctionError(InputError):
    """An error for a loss or metric whose result cannot be summed or trained on.

    The message is a complete sentence.
    """


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each token, (N,).

    Training uses the faster `chunked_loss` for this loss.
    """
    return F.cross_entropy(logits, targets, reduction="none")


LOSSES: Registry[TokenFunction] = registries.LOSSES
METRICS: Registry[TokenFunction] = registries.METRICS


def token_accuracy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return 1 for each token that the model considers most probable, else 0, (N,)."""
    return (logits.argmax(dim=-1) == targets).float()


METRICS.provide({TOKEN_ACCURACY: token_accuracy})


def register_loss(name: str, loss: TokenFunction) -> None:
    """Register a loss that `training.loss: <name>` selects.

    Args:
        loss: maps logits (N, V) in fp32 and target IDs (N,) to one differentiable number per token,
            (N,).

    Raises:
        ValueError: the name belongs to another registered loss.
    """
    LOSSES.register(name, loss)


def register_metric(name: str, metric: TokenFunction) -> None:
    """Register a metric that `training.metrics: [<name>]` selects.

    Its mean over held-out tokens is logged as `eval_<name>`. `metric` has the same arguments and
    result as a loss (see `register_loss`).

    Raises:
        ValueError: the name belongs to another registered metric.
    """
    METRICS.register(name, metric)


def own_loss(name: str) -> TokenFunction | None:
    """Return the user-defined loss with this name; None for the built-in one.

    Raises:
        ValueError: no loss has this name, or it cannot be loaded.
    """
    if name == CROSS_ENTROPY and not LOSSES.is_own(name):
        return None
    return checked(f"loss {name!r}", LOSSES.get(name), is_trained_on=True)


def metrics_by_key(names: Sequence[str]) -> dict[str, TokenFunction]:
    """Return the metrics with these names. Their keys are those under which they are logged
    (`eval_…`).

    Raises:
        ValueError: there is no such metric, it cannot be loaded, or two have the same key.
    """
    metrics: dict[str, TokenFunction] = {}
    for name in names:
        key = f"eval_{name.rpartition(':')[2]}"
        if key in metrics or key == "eval_loss":
            raise InputError("models.metric_name_taken", name=name, key=key)
        metrics[key] = checked(f"metric {name!r}", METRICS.get(name))
    return metrics


def checked(shown: str, function: TokenFunction, *, is_trained_on: bool = False) -> TokenFunction:
    """Wrap a loss or metric so that its results are checked.

    A result that is already a mean, or has another shape, would otherwise be summed silently.

    Args:
        shown: the function's name in error messages.
        is_trained_on: True for a loss, whose results need a gradient if the logits have one.
    """
    place = place_of(function)
    shown = f"{shown} at {place}" if place else shown

    def call(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        values = function(logits, targets)
        if not isinstance(values, torch.Tensor) or values.shape != targets.shape:
            shape = (
                list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            )
            raise TokenFunctionError(
                "models.token_function_shape",
                function=shown,
                returned=shape,
                count=len(targets),
                expected=list(targets.shape),
            )
        needs_gradient = is_trained_on and logits.requires_grad and torch.is_grad_enabled()
        if needs_gradient and not values.requires_grad:
            raise TokenFunctionError("models.loss_without_gradient", function=shown)
        return values

    return call


class MetricSums:
    """Sums of metrics over all tokens. The object is called like a loss, and adds to the sums.

    Attributes:
        sums: by key, over `count` tokens.
    """

    def __init__(self, metrics: Mapping[str, TokenFunction]) -> None:
        self.metrics = metrics
        self.sums = dict.fromkeys(metrics, 0.0)
        self.count = 0

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for key, metric in self.metrics.items():
            self.sums[key] += float(metric(logits, targets).sum())
        self.count += len(targets)
        return torch.zeros_like(targets, dtype=torch.float32)
