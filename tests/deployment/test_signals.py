"""Signals ask to stop while a training runs, and only then."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from infrastructure.core import stop_signals
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import (
    StopSignal,
    interrupt_on_signals,
    reason_of,
)
from infrastructure.deployment.signals import stop_on_signals
from infrastructure.monitoring.records.run_owner import announce_stop
from infrastructure.training.core.state import StopReason, TrainingState

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_requests_a_stop(state: TrainingState, number: signal.Signals) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), number)
    assert state.stop_reason is StopReason.SIGNAL
    assert state.stop_message == reason_of(number)
    assert (state.is_interrupted, state.stop_signal) == (True, number.name)


@pytest.mark.parametrize("is_for_this_process", [True, False])
def test_temper_stop_is_known_from_other_signals(
    state: TrainingState, tmp_path: Path, is_for_this_process: bool
) -> None:
    announce_stop(tmp_path, os.getpid() if is_for_this_process else 1)
    with stop_on_signals(state, run_path=tmp_path):
        os.kill(os.getpid(), signal.SIGTERM)
    if is_for_this_process:
        assert (state.stop_reason, state.stop_message) == (
            StopReason.COMMAND,
            phrase("core.stopped_by_command"),
        )
    else:
        assert (state.stop_reason, state.stop_message) == (
            StopReason.SIGNAL,
            "ended from outside (SIGTERM)",
        )
    assert state.stop_signal == "SIGTERM"  # which decides the exit code
    assert not [*tmp_path.iterdir()]


def test_the_first_signal_is_the_one_that_is_reported(state: TrainingState) -> None:
    """A terminal that is closed may be told of twice: by the kernel, and by the shell."""
    with stop_on_signals(state):
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert (state.stop_message, state.stop_signal) == ("its terminal was closed (SIGHUP)", "SIGHUP")


def test_a_second_ctrl_c_breaks_off_the_step(state: TrainingState) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match="interrupted"):
            os.kill(os.getpid(), signal.SIGINT)


def sleep_after(act: Callable[[], object]) -> None:
    """What `act` brings about may come at once, or while this sleeps."""
    act()
    time.sleep(60)


def test_it_waits_until_nothing_is_lost_by_it(state: TrainingState) -> None:
    allowed = threading.Event()
    with stop_on_signals(state, allowed.is_set):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # the weights change, or are being saved
        with pytest.raises(KeyboardInterrupt):
            sleep_after(threading.Timer(0.1, allowed.set).start)


def test_any_more_ctrl_c_lose_nothing_that_waiting_keeps(state: TrainingState) -> None:
    allowed = threading.Event()
    with stop_on_signals(state, allowed.is_set):
        for _ in range(5):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopSignal):
            sleep_after(allowed.set)


def test_what_is_raised_is_the_first_signal_and_is_not_raised_again_while_it_unwinds(
    state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_signals, "UNWINDING_SECONDS", 60.0)  # as long as the machine likes
    unwound: list[bool] = []

    def broken_off() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)  # such as while the last version is written
            unwound.append(True)

    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopSignal) as raised:
            broken_off()
    assert (raised.value.name, unwound) == ("SIGTERM", [True])


def test_a_second_sigterm_is_harmless(state: TrainingState) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert state.stop_message == "ended from outside (SIGTERM)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_step_that_takes_too_long_is_broken_off(
    state: TrainingState, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the compiling of a model, or a long evaluation."""
    monkeypatch.setattr(stop_signals, "PATIENCE_SECONDS", 0.1)
    with (
        stop_on_signals(state),
        pytest.raises(KeyboardInterrupt, match=re.escape(reason_of(number))),
    ):
        sleep_after(lambda: os.kill(os.getpid(), number))


def test_nothing_comes_after_the_end(state: TrainingState, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []

    def noted(_seconds: float, wake: Callable[[], None]) -> threading.Timer:
        timers.append(threading.Timer(60.0, wake))
        return timers[-1]

    monkeypatch.setattr(stop_signals, "threading", SimpleNamespace(**vars(threading)))
    monkeypatch.setattr(stop_signals.threading, "Timer", noted)
    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGTERM)
    (timer,) = timers
    assert timer.finished.is_set(), "it goes on"
    timer.function()  # as where it was just about to wake the training


def test_the_old_handlers_come_back(state: TrainingState) -> None:
    before = [signal.getsignal(number) for number in ALL]
    with interrupt_on_signals(), stop_on_signals(state):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(n) for n in ALL] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_before_the_training_a_signal_is_an_interrupt_that_names_it(number: signal.Signals) -> None:
    with interrupt_on_signals(), pytest.raises(StopSignal, match=re.escape(reason_of(number))):
        os.kill(os.getpid(), number)


def test_a_hangup_that_is_ignored_stays_ignored(state: TrainingState) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_on_signals(), stop_on_signals(state):
            os.kill(os.getpid(), signal.SIGHUP)
        assert state.stop_reason is None
    finally:
        signal.signal(signal.SIGHUP, before)


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
