"""Where a training stands, and why it is to end."""

import math
import signal

import pytest
import torch

from infrastructure.training.core.state import StopReason, TrainingState


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1))


def test_of_several_reasons_to_end_the_first_is_kept_with_its_signal(state: TrainingState) -> None:
    state.interrupt("ended from outside", StopReason.REQUESTED, signal.SIGTERM)
    state.interrupt("the deadline is near", StopReason.DEADLINE)
    state.interrupt("interrupted", StopReason.REQUESTED, signal.SIGINT)
    assert (state.stop_reason, state.stop_message) == (StopReason.REQUESTED, "ended from outside")
    assert (state.stop_signal, state.is_interrupted) == ("SIGTERM", True)


def test_a_signal_after_another_reason_is_not_what_ended_it(state: TrainingState) -> None:
    state.stop("nothing gets better")
    state.interrupt("ended from outside", StopReason.REQUESTED, signal.SIGTERM)
    assert (state.stop_message, state.stop_signal) == ("nothing gets better", None)
    assert state.is_interrupted


def test_a_run_is_cut_short_by_an_interrupt_before_its_last_step_alone(
    state: TrainingState,
) -> None:
    state.step, state.total_steps = 3, 4
    state.stop("nothing gets better")
    assert not state.is_cut_short
    state.interrupt("Ctrl-C")
    assert state.is_cut_short
    state.step = 4
    assert not state.is_cut_short


def test_what_was_measured_holds_for_its_rows_alone(state: TrainingState) -> None:
    def measured() -> tuple[object, ...]:
        return state.evaluation, state.evaluated_step, state.best_evaluation_loss

    state.evaluation, state.evaluated_step = {"eval_loss": 1.0}, 3
    state.best_evaluation_loss = 0.5
    kept = measured()
    for rows in ("rows", "rows", None):  # first of rows that were not known
        state.measure_on(rows)
        assert (measured(), state.measured_on) == (kept, "rows")
    state.measure_on("others")
    assert (measured(), state.measured_on) == (({}, -1, math.inf), "others")


def test_only_a_finite_number_of_these_weights_is_a_score(state: TrainingState) -> None:
    state.step = state.evaluated_step = 3
    scores = []
    for value in (0.0, math.nan, math.inf):
        state.evaluation = {"eval_loss": value}
        scores.append(state.score)
    state.evaluation = {"eval_accuracy": 1.0}
    assert [*scores, state.score] == [0.0, None, None, None]


def test_every_so_many_steps_is_never_before_the_first(state: TrainingState) -> None:
    found = []
    for step in range(5):
        state.step = step
        found.append((state.every(2), state.every(None), state.every(0), state.every(1)))
    assert found == [(False,) * 4, *[(n % 2 == 0, False, False, True) for n in range(1, 5)]]
