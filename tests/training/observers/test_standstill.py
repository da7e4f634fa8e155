"""A training whose steps change nothing is stopped, and a slow one is not."""

import logging
from typing import Any

import pytest
import torch

from infrastructure.training.core.state import StepRewards, StopReason, TrainingState
from infrastructure.training.observers.standstill import NUM_STEPS, Standstill


class OnGpu:
    """A norm that is on a device, and counts how often it is read."""

    device = torch.device("cuda")
    num_read = 0

    def __init__(self, norm: float) -> None:
        self.norm = norm

    def __float__(self) -> float:
        OnGpu.num_read += 1
        return self.norm


def stopped_at(
    norms: list[Any],
    rates: list[float] | None = None,
    rewards: list[StepRewards] | None = None,
    why: str = "training.all_gradients_zero(count=20, learning_rate=0.001000)",
) -> int | None:
    """The step after which a training of these steps is stopped; None: it is not."""
    state, observer = TrainingState(torch.nn.Linear(1, 1)), Standstill()
    for step, norm in enumerate(norms, start=1):
        state.step, state.grad_norm = step, norm
        state.learning_rate = rates[step - 1] if rates else 1e-3
        state.rewards = rewards[step - 1] if rewards else None
        observer.step_end(state)
        if state.is_interrupted:
            assert (state.stop_reason, state.stop_message) == (StopReason.NOTHING_LEARNED, why)
            return step
    return None


def test_twenty_steps_in_a_row_without_a_gradient_end_it() -> None:
    assert stopped_at([torch.zeros(())] * 30) == 20
    assert stopped_at([1.0, 0.0, 0.5] + [0.0] * 30) == 23
    assert stopped_at([*[0.0] * 19, 1e-45] * 3) is None


def test_steps_at_a_rate_of_0_or_without_an_update_do_not_count() -> None:
    assert stopped_at([0.0] * 40, [0.0] * 10 + [1e-3] * 30) == 30
    assert stopped_at([0.0] * 40, [0.0] * 40) is None
    assert stopped_at([None] * 40) is None
    assert stopped_at([float("nan")] * 40) is None


def test_rewards_explain_a_gradient_of_0_but_for_20_steps_without_any() -> None:
    tied = [StepRewards(num_tied=n) for n in range(1, 41)]
    assert stopped_at([0.0] * 40, rewards=tied) is None
    without = [StepRewards(num_without=n) for n in range(1, 41)]
    none = "training.no_reward_returned(count=20)"
    assert stopped_at([0.3] * 40, rewards=without, why=none) == 20  # of a KL term alone
    some = [StepRewards(num_without=n % 19) for n in range(40)]
    assert stopped_at([0.0] * 40, rewards=some) is None
    assert stopped_at([0.0] * 40, rewards=[StepRewards()] * 40) == 20  # rewards of weight 0


def test_a_gpu_is_waited_for_seldom_as_long_as_there_are_gradients() -> None:
    OnGpu.num_read = 0
    assert stopped_at([OnGpu(1.0)] * 200) is None
    assert OnGpu.num_read == 1 + 200 // NUM_STEPS
    assert stopped_at([OnGpu(1.0)] * 25 + [OnGpu(0.0)] * 60) == 59  # first seen at step 40
    assert stopped_at([OnGpu(0.0)] * 60) == 20


def test_what_was_counted_outlives_a_restart() -> None:
    state, first, again = TrainingState(torch.nn.Linear(1, 1)), Standstill(), Standstill()
    state.grad_norm, state.learning_rate = 0.0, 1e-3
    for _ in range(15):
        first.step_end(state)
    again.load_state_dict(dict(first.state_dict()))
    for _ in range(4):
        again.step_end(state)
    assert not state.is_interrupted
    again.step_end(state)
    assert state.is_interrupted


def named(caplog: pytest.LogCaptureFixture, reached: list[str]) -> list[str]:
    """What is said of a model of two layers, of which steps reach these parameters."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=1.0))
    observer = Standstill()
    observer.phase_start(state)
    with caplog.at_level(logging.WARNING):
        for _ in range(2 * NUM_STEPS):
            for name, parameter in model.named_parameters():
                parameter.grad = torch.zeros_like(parameter) if name in reached else None
            observer.after_backward(state)
    return caplog.messages


def test_parameters_that_no_gradient_reaches_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [message] = named(caplog, ["0.weight", "0.bias", "1.weight"])
    one = "parameters=1.bias, count=20, they_are=it is"
    assert message == f"training.parameters_without_gradient({one})"
    caplog.clear()
    [message] = named(caplog, ["0.weight"])
    assert message.endswith("(parameters=0.bias and 2 more, count=20, they_are=they are)")


def test_each_phase_names_what_it_trains_and_does_not_reach(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Frozen parameters and those of no optimizer do not count; a late gradient does."""
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in "abcd"})
    model["c"].requires_grad_(False)
    held = [*model["a"].parameters(), *model["b"].parameters(), *model["c"].parameters()]
    state, observer = TrainingState(model, torch.optim.SGD(held, lr=1.0)), Standstill()

    def train(reached: dict[str, int]) -> None:
        """By name, the step from which on a parameter has a gradient."""
        observer.phase_start(state)
        for step in range(NUM_STEPS):
            for name, parameter in model.named_parameters():
                is_reached = step >= reached.get(name, NUM_STEPS)
                parameter.grad = torch.zeros_like(parameter) if is_reached else None
            observer.after_backward(state)

    train({"a.weight": 0, "b.weight": NUM_STEPS - 1})
    assert caplog.messages == []
    train({"b.weight": 0})
    [message] = caplog.messages
    assert "parameters=a.weight, " in message
    train({"a.weight": 0, "b.weight": 0})
    assert len(caplog.messages) == 1


def test_no_name_is_given_where_all_are_reached(caplog: pytest.LogCaptureFixture) -> None:
    assert named(caplog, ["0.weight", "0.bias", "1.weight", "1.bias"]) == []
