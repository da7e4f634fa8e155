"""Where a training stands, and why it is to end."""

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
