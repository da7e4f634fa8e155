"""Signals ask to stop while a training runs, and only then."""

import os
import signal
import threading

import pytest
import torch

from infrastructure.deployment.signals import stop_on_signals
from infrastructure.training.state import TrainingState


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop(state: TrainingState, number: signal.Signals) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), number)
    assert state.stop_reason == f"{number.name} received"


def test_a_second_ctrl_c_stops_at_once(state: TrainingState) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_sigterm_is_harmless(state: TrainingState) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert state.stop_reason == "SIGTERM received"


def test_the_old_handlers_come_back(state: TrainingState) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signals(state):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_nothing_is_installed(state: TrainingState) -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run() -> None:
        with stop_on_signals(state):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
