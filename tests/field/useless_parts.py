"""Rewards, losses and extensions that teach nothing, or not for long; and healthy ones. Each is
chosen by its address, as a person's own would be."""

import math
from typing import Any, ClassVar

import torch

from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Extension

NUM_GOOD_CALLS = 9  # of the tries before a training, too
calls = 0


def _good(completions: list[Any]) -> list[float]:
    return [float(len(str(completion)) % 3) for completion in completions]


def good(completions: list[Any], **_: Any) -> list[float]:
    """A reward that tells answers apart."""
    return _good(completions)


def nothing(completions: list[Any], **_: Any) -> list[None]:
    """A function whose author forgot to return anything but None."""
    return [None] * len(completions)


def nothing_later(completions: list[Any], **_: Any) -> list[float | None]:
    """A service that answers at first, and then no more."""
    global calls
    calls += 1
    return list(_good(completions)) if calls <= NUM_GOOD_CALLS else [None] * len(completions)


def not_a_number_later(completions: list[Any], **_: Any) -> list[float]:
    """A mean over nothing."""
    global calls
    calls += 1
    return _good(completions) if calls <= NUM_GOOD_CALLS else [float("nan")] * len(completions)


def too_few(completions: list[Any], **_: Any) -> list[float]:
    """One reward for all."""
    return _good(completions)[:1]


def too_few_later(completions: list[Any], **_: Any) -> list[float]:
    """One reward for all of a later batch."""
    global calls
    calls += 1
    return _good(completions) if calls <= NUM_GOOD_CALLS else [1.0]


def tied(completions: list[Any], **_: Any) -> list[float]:
    """All answers are as good: normal where prompts are too easy."""
    return [1.0] * len(completions)


def of_other_rows(completions: list[Any], task: list[str], **_: Any) -> list[float | None]:
    """Judges every second row, and says nothing of the others."""
    numbers = _good(completions)
    return [n if kind == "odd" else None for n, kind in zip(numbers, task, strict=True)]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The usual loss."""
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def no_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A weight that was left at 0."""
    return 0.0 * cross_entropy(logits, targets)


def beyond_margin(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A hinge with a margin that is reached soon."""
    return torch.relu(cross_entropy(logits, targets) - 5.0)


class ZeroesGradients(Extension):
    """A mask that hides everything."""

    def __init__(self, trainer: Any) -> None:
        """Needs nothing of it."""

    def after_backward(self, state: TrainingState) -> None:
        for parameter in state.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()


class ZeroesSomeGradients(ZeroesGradients):
    """A mask that hides everything in 19 of 20 steps: slow, and no standstill."""

    def after_backward(self, state: TrainingState) -> None:
        if state.step % 20:
            super().after_backward(state)


class NotesRates(Extension):
    """Notes the learning rate that each step uses."""

    used: ClassVar[list[float]] = []

    def __init__(self, trainer: Any) -> None:
        """Needs nothing of it."""

    def after_backward(self, state: TrainingState) -> None:
        assert state.optimizer is not None
        self.used.append(float(state.optimizer.param_groups[0]["lr"]))


given: dict[str, list[Any]] = {}


def notes_columns(completions: list[Any], **columns: Any) -> list[float]:
    """Notes what it was given last."""
    given.clear()
    given.update(columns)
    return _good(completions)


def around_zero(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A policy's loss: near 0, of both signs, with a jump now and then."""
    global calls
    calls += 1
    base = 0.02 + 0.05 * math.sin(2.0 * calls) + (1.0 if calls % 13 == 0 else 0.0)
    loss = cross_entropy(logits, targets)
    return base + 1e-3 * (loss - loss.detach())
