"""A training that no longer improves is ended, and ends again when it is gone on with."""

import json
import math

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Event, HookRunner
from infrastructure.training.observers.early_stopping import (
    BestSaved,
    EarlyStopping,
    early_stopping,
)


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1), total_steps=100)


def evaluate(state: TrainingState, hooks: HookRunner, loss: float) -> None:
    state.evaluation = {"eval_loss": loss}
    hooks.fire(Event.EVAL_END, state)


def test_early_stopping_counts_evaluations_without_improvement(state: TrainingState) -> None:
    hooks = HookRunner([EarlyStopping(patience=2)])
    for loss in (5.0, 4.0, 4.05, 3.0, 3.05):
        evaluate(state, hooks, loss)
        assert state.stop_reason is None
    evaluate(state, hooks, math.nan)
    why = "metric=held-out loss, count=2, best=3, value=NaN"
    assert state.stop_message == f"training.not_improving({why})"


def test_early_stopping_goes_on_where_it_was(state: TrainingState) -> None:
    first = HookRunner([EarlyStopping(patience=2)])
    evaluate(state, first, 3.0)
    evaluate(state, first, 3.5)
    saved = json.loads(json.dumps(first.state_dict(), allow_nan=False))
    second = HookRunner([EarlyStopping(patience=2)])
    second.load_state_dict(saved)
    evaluate(state, second, 3.2)
    assert state.stop_reason is not None


def test_a_fresh_early_stopping_can_be_saved_as_strict_json() -> None:
    json.dumps(EarlyStopping(patience=1).state_dict(), allow_nan=False)


def test_only_nan_from_the_start_stops_too(state: TrainingState) -> None:
    hooks = HookRunner([EarlyStopping(patience=2)])
    evaluate(state, hooks, math.nan)
    evaluate(state, hooks, math.inf)
    assert state.stop_reason is not None


def test_early_stopping_on_another_metric(state: TrainingState) -> None:
    hooks = HookRunner([EarlyStopping(patience=1, metric="eval_error")])
    with pytest.raises(
        ValueError,
        match=r"training\.early_stopping_metric_missing.*metric=eval_error.*known=eval_loss",
    ):
        evaluate(state, hooks, 1.0)


def test_patience_is_at_least_one_evaluation() -> None:
    with pytest.raises(ValueError, match=r"training\.patience_too_small\(patience=0\)"):
        EarlyStopping(0)


def test_of_some_metrics_more_is_better(state: TrainingState) -> None:
    stopping = EarlyStopping(1, "eval_exact_match", greater_is_better=True)
    hooks = HookRunner([stopping])
    for share in (0.1, 0.2, 0.3):
        state.evaluation = {"eval_exact_match": share}
        hooks.fire(Event.EVAL_END, state)
        assert state.stop_reason is None
    state.evaluation = {"eval_exact_match": 0.3}
    hooks.fire(Event.EVAL_END, state)
    assert state.stop_reason is not None
    assert stopping.best == 0.3


def test_a_store_keeps_the_lowest_so_the_sign_is_turned(state: TrainingState) -> None:
    state.evaluation, state.evaluated_step = {"eval_loss": 2.0, "eval_f1": 0.25}, state.step
    assert state.score == 2.0
    state.best_metric, state.best_is_greater = "eval_f1", True
    assert state.score == -0.25
    state.evaluated_step = state.step - 1
    assert state.score is None


@pytest.mark.parametrize(("rows", "stops"), [("same", True), ("other", False), (None, True)])
def test_what_was_best_on_other_rows_is_forgotten(
    state: TrainingState, rows: str | None, stops: bool
) -> None:
    """A run that had decided to stop stops again, unless it is measured on other rows since."""
    first = HookRunner([EarlyStopping(patience=2)])
    state.measured_on = "same"
    for loss in (1.0, 2.0, 3.0):
        evaluate(state, first, loss)
    assert state.stop_reason is not None
    again = TrainingState(torch.nn.Linear(1, 1), total_steps=100)
    again.measured_on = rows
    second = HookRunner([EarlyStopping(patience=2)])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.fire(Event.TRAIN_START, again)
    assert (again.stop_reason is not None) == stops
    earlier = "training.had_stopped_improving(metric=held-out loss, best=1)"
    assert again.stop_message == (earlier if stops else None)
    if not stops:
        evaluate(again, second, 5.0)  # the best on these rows
        evaluate(again, second, 6.0)
        assert again.stop_reason is None
        evaluate(again, second, 5.5)
        assert again.stop_reason is not None


def test_each_step_that_is_best_is_saved_also_by_whoever_goes_on(state: TrainingState) -> None:
    saved: list[int] = []

    def measure(state: TrainingState, hooks: HookRunner, losses: list[float]) -> None:
        for loss in losses:
            state.step += 1
            state.evaluated_step, state.must_save = state.step, False
            evaluate(state, hooks, loss)
            if state.must_save:
                saved.append(state.step)

    state.measured_on = "rows"
    hooks = HookRunner([BestSaved()])
    measure(state, hooks, [3.0, 3.0, 2.0, math.nan, 2.5])
    again = HookRunner([BestSaved()])
    again.load_state_dict(json.loads(json.dumps(hooks.state_dict())))
    measure(state, again, [2.1, 1.0])
    assert saved == [1, 3, 7]
    state.measured_on = "other rows"
    measure(state, again, [5.0, 6.0, 4.0])
    assert saved == [1, 3, 7, 8, 10]


def test_a_training_is_stopped_and_its_best_saved_as_configured() -> None:
    assert early_stopping(TrainingConfig()) == []
    (best,) = early_stopping(TrainingConfig(best_metric="token_accuracy"))
    assert isinstance(best, BestSaved)
    config = TrainingConfig(early_stopping_patience=3, best_metric="token_accuracy")
    best, stopping = early_stopping(config)
    assert isinstance(best, BestSaved)
    assert isinstance(stopping, EarlyStopping)
    assert stopping.patience == 3
    assert (stopping.metric, stopping.greater_is_better) == ("eval_token_accuracy", True)
    _, stopping = early_stopping(TrainingConfig(early_stopping_patience=1))
    assert isinstance(stopping, EarlyStopping)
    assert (stopping.metric, stopping.greater_is_better) == ("eval_loss", False)
