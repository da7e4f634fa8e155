"""How a training ends: several signals, and ranks whose partner never comes."""

import json
import os
import signal
import socket
import subprocess
import time
import warnings
from pathlib import Path

import pytest

from infrastructure.core import stop_signals
from infrastructure.training.hf_bridge.trainer_events import TrainerEvents
from tests.deployment.runs import (
    newest_step,
    runs_of,
    start_temper,
    write_settings,
)
from tests.slow import slow, slow_but
from tests.training.methods.method_runs import configuration, in_fork, run_folder, train

TWICE = ((signal.SIGINT,) * 2, (signal.SIGINT,) * 3, (signal.SIGTERM, signal.SIGINT, signal.SIGINT))


@pytest.mark.parametrize(
    "numbers", [TWICE[2], *(pytest.param(numbers, marks=slow) for numbers in TWICE[:2])]
)
def test_f9_any_sequence_of_signals_in_a_method_of_trl_saves_the_steps(
    tmp_path: Path, saved_llama: Path, numbers: tuple[int, ...]
) -> None:
    """In the third step and in the middle of the save that follows, where the newest version is of
    none."""
    config = configuration("orpo", tmp_path, saved_llama)
    config.training.checkpoint_frequency = 100

    def stopped() -> None:
        warnings.simplefilter("ignore")  # as trl.experimental has one
        before = TrainerEvents.micro_batch_done

        def signalled(events: TrainerEvents) -> None:
            before(events)
            if events.state.step == 2:
                for number in numbers:
                    os.kill(os.getpid(), number)

        TrainerEvents.micro_batch_done = signalled  # type: ignore[method-assign]
        try:
            name = train(config)["signal"]
        except stop_signals.StopSignal as stop:  # the evaluation after the save is broken off
            name = stop.name
        assert name in {signal.Signals(number).name for number in numbers}

    assert in_fork(stopped) == 0
    assert newest_step(run_folder(config)) == 3


def test_f9_a_step_before_which_all_is_saved_is_broken_off(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward that hangs, for example; the exit code is that of the first signal."""
    config = configuration("orpo", tmp_path, saved_llama)
    config.training.checkpoint_frequency = 1
    monkeypatch.setattr(stop_signals, "PATIENCE_SECONDS", 0.1)

    def stopped() -> None:
        warnings.simplefilter("ignore")  # as trl.experimental has one
        before = TrainerEvents.micro_batch_done

        def signalled(events: TrainerEvents) -> None:
            before(events)
            if events.state.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
                raise AssertionError("it was waited for")

        TrainerEvents.micro_batch_done = signalled  # type: ignore[method-assign]
        with pytest.raises(stop_signals.StopSignal) as raised:
            train(config)
        assert raised.value.name == "SIGTERM"

    assert in_fork(stopped) == 0
    assert newest_step(run_folder(config)) == 2


def _alone(folder: Path, rank: int, *more: str) -> subprocess.Popen[str]:
    """One of two processes that a launcher should have started."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return start_temper(
        *("train", *more), folder=folder, **variables, RANK=str(rank), LOCAL_RANK=str(rank)
    )


def test_w3_a_rank_whose_partner_never_comes_ends_at_its_timeout(tmp_path: Path) -> None:
    write_settings(tmp_path)
    process = _alone(tmp_path, 0, "--process-timeout", "2s")
    _, errors = process.communicate(timeout=240)
    assert (process.returncode, "training.rank_of_size(rank=1," in errors) == (75, True)


@pytest.mark.parametrize("number", slow_but([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_w3_a_rank_whose_partner_never_comes_answers_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    write_settings(tmp_path)
    process = _alone(tmp_path, 0)
    while not runs_of(tmp_path):  # all is prepared, and it waits for the other
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (128 + number, -number)


@pytest.mark.parametrize("number", slow_but([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_f9_a_signal_in_the_last_step_of_a_method_finishes_the_run_and_trains_no_further_step(
    tmp_path: Path, saved_llama: Path, number: int
) -> None:
    config = configuration("kto", tmp_path, saved_llama)

    def stopped() -> None:
        warnings.simplefilter("ignore")  # as trl.experimental has one
        before = TrainerEvents.micro_batch_done

        def signalled(events: TrainerEvents) -> None:
            before(events)
            if events.state.step == 7:
                os.kill(os.getpid(), number)

        TrainerEvents.micro_batch_done = signalled  # type: ignore[method-assign]
        assert train(config)["status"] == "finished"
        TrainerEvents.micro_batch_done = before  # type: ignore[method-assign]
        assert train(config)["steps"] == 8  # by the same command

    assert in_fork(stopped) == 0
    assert newest_step(run_folder(config)) == 8
    assert "eval_loss" in json.loads((run_folder(config) / "summary.json").read_text())["after"]
