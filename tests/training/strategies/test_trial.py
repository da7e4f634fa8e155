"""A strategy of one's own is tried on a copy, and neither it nor the model changes."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.core.state import Phase
from infrastructure.training.strategies import StandardTrainingStrategy
from infrastructure.training.strategies.trial import first_step, is_own
from tests.training.toy import ToyModel


class Own(StandardTrainingStrategy):
    """Notes its calls, and changes the model when a phase begins."""

    def __init__(self) -> None:
        super().__init__(TrainingConfig())
        self.calls: list[object] = []

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        self.calls.append(num_epochs)
        return super().phases(model, num_epochs)

    def enter_phase(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int
    ) -> None:
        super().enter_phase(model, optimizer, index)
        self.calls.append((optimizer, index))
        model.eval().requires_grad_(False)
        model.note = "changed"  # type: ignore[assignment]

    def begin_step(self, step: int, examples: Sequence[object]) -> None:
        super().begin_step(step, examples)
        self.calls.append((step, examples))


class WithForms(Own):
    has_forms = True


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("steps_per_epoch", [0, 7])
def test_a_copy_begins_and_leaves_no_trace(steps_per_epoch: int) -> None:
    strategy: Any = Own()
    model = strategy.held = ToyModel()
    strategy.steps_per_epoch = steps_per_epoch
    strategy.objective = SimpleNamespace(time_step=None, draw=5)
    optimizer = optimizer_of(model)
    with first_step(strategy, model, optimizer, [3]) as made:
        trial: Any = made
        assert trial.calls == [1, (optimizer, 0), (0, [3])]
        assert (trial.entered, trial.steps_per_epoch) == (0, steps_per_epoch or 1)
        assert not any(parameter.requires_grad for parameter in model.parameters())
    shared = ("held", "config", "logger", "compute_loss", "objective")
    assert all(getattr(trial, name) is getattr(strategy, name) for name in shared)
    assert (strategy.calls, strategy.entered) == ([], -1)
    assert (strategy.steps_per_epoch, strategy.objective.draw) == (steps_per_epoch, 5)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.training
    assert not hasattr(model, "note")


def test_what_cannot_be_copied_deeply_is_shared() -> None:
    strategy, model = Own(), ToyModel()
    lock = strategy.lock = threading.Lock()  # type: ignore[attr-defined]
    with first_step(strategy, model, optimizer_of(model), []) as trial:
        assert trial is not strategy
        assert trial.lock is lock  # type: ignore[attr-defined]
    assert strategy.entered == -1


def test_ours_one_that_trains_and_one_with_forms_are_taken_as_they_are() -> None:
    training, model = Own(), ToyModel()
    training.entered = 0
    ours = StandardTrainingStrategy(TrainingConfig())
    for strategy, is_ones_own in ((ours, False), (training, True), (WithForms(), False)):
        assert is_own(strategy) == is_ones_own
        with first_step(strategy, model, optimizer_of(model), []) as same:
            assert same is strategy
    assert training.calls == []
