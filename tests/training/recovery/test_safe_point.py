"""A safe point holds what a step changes besides weights and optimizer, and gives it back."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import Position, TrainingState
from infrastructure.training.extensions.extension_hooks import HookRunner, Observer
from infrastructure.training.recovery.loss_spikes import LossSpikeDetector
from infrastructure.training.recovery.safe_point import (
    FirstStates,
    SafePoint,
    at_safe_point,
    forget_unscaling,
)

CPU = torch.device("cpu")


class Memory(Observer):
    """Remembers numbers in a list, which it changes in place."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = [*numbers]

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": self.numbers} if self.numbers else {}


class Other(Memory):
    """An extension with another name."""


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(1)), random.random(), float(np.random.random_sample())


def changed(state: TrainingState, losses: Any) -> None:
    """Change in place everything that a safe point holds."""
    state.position.example += 6
    state.step_is_ending = not state.step_is_ending
    losses.sums.add(MetricAccumulator(5.0, 2))
    losses.watch.observe(9.0)
    losses.watch.until_step = 4


def made() -> tuple[TrainingState, Any]:
    state = TrainingState(torch.nn.Linear(1, 1), position=Position(1, 2, 12), step_is_ending=True)
    sums, watch = MetricAccumulator(3.0, 4, num_steps=2), LossSpikeDetector(3.0, recent=[1.0])
    return state, SimpleNamespace(sums=sums, watch=watch)


def seen(state: TrainingState, losses: Any) -> tuple[Any, ...]:
    return replace(state.position), state.step_is_ending, replace(losses.sums), losses.watch


@pytest.mark.parametrize("how_often", [1, 2])
def test_a_point_gives_back_what_was_there_as_often_as_it_is_wanted(how_often: int) -> None:
    state, losses = made()
    memory = Memory(1)
    point = SafePoint.of(state, HookRunner([memory]), losses, CPU)
    expected, before = drawn(), seen(*made())
    memory.numbers.append(2)
    assert point.hooks == {"Memory": {"numbers": [1]}}
    for _ in range(how_often):
        changed(state, losses)
        point.restore(state, losses, CPU)
        assert seen(state, losses) == before
        assert drawn() == expected


def test_within_a_point_everything_is_as_it_was_and_afterwards_as_it_is() -> None:
    state, losses = made()
    point = SafePoint.of(state, HookRunner([]), losses, CPU)
    then, before = drawn(), seen(*made())
    changed(state, losses)
    sums, watch = losses.sums, losses.watch
    now, numbers = seen(state, losses), torch.get_rng_state()

    def work() -> None:
        with at_safe_point(point, state, losses, CPU):
            assert seen(state, losses) == before
            assert drawn() == then
            for _ in range(2):
                changed(state, losses)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert seen(state, losses) == now
    assert losses.sums is sums
    assert losses.watch is watch
    assert torch.equal(torch.get_rng_state(), numbers)


def test_a_scaler_that_was_unscaled_can_be_unscaled_again() -> None:
    forget_unscaling(None, CPU)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    forget_unscaling(scaler, CPU)  # before its first use
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    forget_unscaling(scaler, CPU)
    scaler.unscale_(optimizer)
    assert scaler.get_scale() == 8.0


def test_a_hook_that_a_checkpoint_does_not_hold_is_as_it_began() -> None:
    memory, other, silent = Memory(1), Other(5), type("Silent", (Memory,), {})()
    hooks = HookRunner([memory, other, silent])
    first = FirstStates(hooks)
    assert first.completed({}, hooks) == {}, "none has changed"
    for hook in (memory, other, silent):
        hook.numbers.append(2)
    saved = {"Memory": {"numbers": [7]}, "Gone": {}}
    completed = first.completed(saved, hooks)
    assert completed == {**saved, "Other": {"numbers": [5]}, "Silent": {}}
    completed["Other"]["numbers"].append(6)
    assert first.completed({"Memory": {}}, hooks)["Other"] == {"numbers": [5]}
    later = HookRunner([*hooks.hooks, type("Later", (Memory,), {})(3)])
    assert "Later" not in first.completed({}, later)
