"""Losses are summed over steps and judged by how many items they are the mean of."""

import json
import math

import pytest
import torch

from infrastructure.config.sections.recovery_config import RecoveryConfig
from infrastructure.core.errors import TrainingDivergedError
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import Position, TrainingState
from infrastructure.training.loop.loss_judge import LossJudge
from infrastructure.training.recovery.loss_spikes import BadLossError
from tests.training.toy import ToySource


def judge_of(loss_spike: str = "roll_back", *, has_scaler: bool = False) -> LossJudge:
    recovery = RecoveryConfig(loss_spike=loss_spike)
    return LossJudge(recovery, ToySource(), torch.device("cpu"), has_scaler)  # type: ignore[arg-type]


def step_of(loss: float, num_items: int = 100, norm: float = 1.0) -> MetricAccumulator:
    return MetricAccumulator(
        loss_sum=torch.tensor(loss * num_items),
        num_items=num_items,
        num_tokens=2 * num_items,
        grad_norm=norm,
        learning_rate=0.5,
    )


@pytest.fixture
def state() -> TrainingState:
    state = TrainingState(torch.nn.Linear(1, 1))
    state.step, state.batch = 7, [1, 2, 3]
    return state


@pytest.mark.parametrize(("num_items", "is_bad"), [(7, False), (8, True)])
@pytest.mark.parametrize("is_searched", [False, True])
def test_a_mean_of_a_few_items_jumps_and_is_no_spike(
    state: TrainingState, num_items: int, is_bad: bool, is_searched: bool
) -> None:
    """While a record is read, and where each step is looked at."""
    judge = judge_of()
    judge.watch.observe(1.0)
    judge.begin_step(Position())
    judge.add(step_of(6.0, num_items))
    judge.watch.until_step = 7
    look = judge.check_last_step if is_searched else judge.read
    if is_bad:
        with pytest.raises(BadLossError) as caught:
            look(state)
        assert caught.value.bad.kind == "loss_spike"
        assert caught.value.bad.is_exact
        assert (caught.value.bad.example, caught.value.bad.num_examples) == (0, 3)
    else:
        look(state)


def test_each_step_is_looked_at_as_far_as_a_search_goes(state: TrainingState) -> None:
    judge = judge_of()
    judge.begin_step(Position())
    judge.add(step_of(math.nan))
    judge.watch.until_step = 6
    judge.check_last_step(state)
    judge.watch.until_step = 7
    with pytest.raises(BadLossError) as caught:
        judge.check_last_step(state)
    assert caught.value.bad.kind == "not_finite"
    judge.pass_over()
    judge.check_last_step(state)


@pytest.mark.parametrize("has_scaler", [True, False])
def test_an_overflow_of_gradients_is_the_business_of_a_scaler(
    state: TrainingState, has_scaler: bool
) -> None:
    judge = judge_of(has_scaler=has_scaler)
    judge.add(step_of(1.0, norm=math.inf))
    assert judge.is_finite is has_scaler
    saved = {"loss_sum": 100.0, "num_items": 100, "num_tokens": 200, "num_steps": 1}
    saved |= {"grad_norm": 0.0, "learning_rate": 0.5, "seconds": 0.0}  # JSON has no infinity
    assert judge.state_dict()["log"] == saved
    if has_scaler:
        judge.check_sums(state)
        judge.read(state)
        assert state.metrics["grad_norm"] == math.inf
    else:
        with pytest.raises(BadLossError) as caught:
            judge.check_sums(state)
        assert caught.value.bad.kind == "not_finite"
        assert isinstance(caught.value, TrainingDivergedError)


def test_a_record_is_the_mean_of_its_steps_and_the_next_begins_with_none(
    state: TrainingState,
) -> None:
    judge = judge_of()
    state.num_tokens = 1234
    judge.add(step_of(1.0, 10, norm=3.0))
    judge.add(step_of(4.0, 30, norm=2.0))
    judge.sums.seconds = 4.0
    judge.check_sums(state)  # looks at them, and leaves them
    judge.read(state)
    assert state.loss == state.metrics["loss"] == pytest.approx((10 + 120) / 40)
    del state.metrics["memory_bytes"]
    assert state.metrics == {
        "loss": state.loss,
        "learning_rate": 0.5,
        "grad_norm": 2.0,
        "tokens": 1234.0,
        "seconds": 4.0,
        "tokens_per_second": 80 / 4.0,
    }
    judge.read(state)
    assert state.metrics == {}
    assert state.loss == pytest.approx((10 + 120) / 40)
    assert judge.watch.recent == [state.loss]


def test_what_goes_on_from_a_checkpoint_ends_the_record_that_was_begun(
    state: TrainingState,
) -> None:
    """Where its batch lay is of the process before: no row is named by it."""
    judge, again = judge_of(), judge_of()
    judge.begin_step(Position(1, 6))
    judge.watch.observe(2.0)
    judge.watch.until_step = 7
    judge.add(step_of(1.0, 10))
    again.begin_step(Position(0, 0))
    again.add(step_of(math.nan, 10))
    again.load_state_dict(json.loads(json.dumps(judge.state_dict())))
    assert again.watch == judge.watch
    again.check_last_step(state)  # there is none of this process
    again.add(step_of(math.nan, 10))
    with pytest.raises(BadLossError) as caught:
        again.read(state)
    assert not caught.value.bad.is_exact
    assert caught.value.bad.num_steps == 2


@pytest.mark.parametrize("policy", ["note", "roll_back"])
def test_a_spike_is_noted_or_raised(state: TrainingState, policy: str) -> None:
    judge = judge_of(policy)
    judge.watch.recent = [1.0] * 20
    judge.add(step_of(9.0))
    if policy == "note":
        judge.read(state)
        numbers = "training.bad_loss_numbers(loss=9, norm=1, extent=)"
        noted = {"kind": "loss_spike", "step": 7, "action": "training.loss_spike_recorded()"}
        [entry] = state.recoveries
        assert entry.items() >= {**noted, "message": numbers}.items()
        assert state.metrics["loss"] == 9.0
    else:
        with pytest.raises(BadLossError):
            judge.read(state)
        assert state.recoveries == []
