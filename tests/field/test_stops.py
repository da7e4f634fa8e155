"""F9, F11, F12, F13, F24 and W3: how a training ends, and what it needs to begin at all."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core import stop_signals
from infrastructure.monitoring.records.machine_history import MachineHistory, machine_charts
from infrastructure.run.directory import plan_run
from infrastructure.training.hf_bridge.trainer_events import TrainerEvents
from infrastructure.training.unified_trainer import UnifiedTrainer
from tests.deployment.runs import (
    ROOT,
    losses,
    newest_step,
    runs_of,
    small_settings,
    start_temper,
    write_settings,
)
from tests.monitoring.written_run import sample
from tests.training.methods.method_runs import configuration, in_fork, run_folder, train

TWICE = ((signal.SIGINT,) * 2, (signal.SIGINT,) * 3, (signal.SIGTERM, signal.SIGINT, signal.SIGINT))


@pytest.mark.parametrize("numbers", TWICE)
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
        assert train(config)["signal"] in {signal.Signals(n).name for n in numbers}

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

        TrainerEvents.micro_batch_done = signalled  # type: ignore[method-assign]
        with pytest.raises(stop_signals.StopSignal) as raised:
            train(config)
        assert raised.value.name == "SIGTERM"

    began = time.monotonic()
    assert in_fork(stopped) == 0
    assert time.monotonic() - began < 55
    assert newest_step(run_folder(config)) == 2


@pytest.mark.parametrize("seconds_back", [3600.0, 86_400.0])
def test_f11_a_clock_that_went_back_leaves_the_curves_in_order(seconds_back: float) -> None:
    history = MachineHistory()
    moments = [1000.0, 1005.0, 1010.0]
    for moment in [*moments, *(1015.0 - seconds_back + 5 * n for n in range(3))]:
        history.add({**sample(0), "time": moment, "cpu_percent": moment % 7 + 1})
        history.add_performance({"time": moment, "model_flops_utilization": 0.3})
    for points in history.curves.values():
        times = [moment for moment, _ in points]
        assert times == sorted(times)
        assert times[-1] - times[0] <= 5 * len(times)
    assert machine_charts(history.curves)


SCRIPT = """
import temper
from pathlib import Path
Path("times").open("a").write("once\\n")
temper.train({data!r}, config_file={config!r}, max_steps=2)
"""


def test_f12_a_script_without_a_guard_trains_once(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    settings["data"]["num_workers"] = 2
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    script = tmp_path / "trains.py"
    script.write_text(
        SCRIPT.format(data=settings["data"]["path"], config=str(tmp_path / "config.yaml"))
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=240,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "times").read_text() == "once\n"
    [run] = runs_of(tmp_path)
    assert [step for step, _ in losses(run)] == [1, 2]


def _layers(kind: str) -> list[torch.nn.Module]:
    nn = torch.nn
    torch.manual_seed(1)
    return {
        "linear": [nn.Linear(8, 8) for _ in range(3)],
        "sequential": [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)],
        "nested": [nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.ReLU()) for _ in range(3)],
        "without weights": [nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8))],
        "attention": [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)] * 1,
    }[kind]


@pytest.mark.parametrize("mode", ["blockwise", "fused"])
@pytest.mark.parametrize("kind", ["linear", "sequential", "nested", "without weights", "attention"])
def test_f13_a_list_of_any_layers_trains_with_low_rank_matrices(kind: str, mode: str) -> None:
    layers = _layers(kind)
    names = [name for layer in layers for name, _ in layer.named_parameters()]
    before = [p.detach().clone() for layer in layers for p in layer.parameters()]
    torch.manual_seed(0)
    batches = [(torch.randn(4, 3, 8), torch.randn(4, 3, 8)) for _ in range(3)]
    config: dict[str, Any] = {"mode": mode, "qlora_enabled": True, "learning_rate": 1e-2}
    UnifiedTrainer(TrainingConfig(num_epochs=2, **config)).train_all_layers(batches, layers)
    assert [name for layer in layers for name, _ in layer.named_parameters()] == names
    after = [p.detach() for layer in layers for p in layer.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_f24_the_newest_run_is_the_one_that_began_last_whatever_the_clock_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([2000.0, 2000.0, 2000.0, 1000.0, 1000.0 - 86_400, 2000.5])
    monkeypatch.setattr(time, "time", lambda: next(moments))
    began: list[str] = []
    for _ in range(6):
        run = plan_run(tmp_path, "a-run")
        run.path.mkdir()
        run.run_file.write_text("{}")
        began.append(run.run_id)
    assert sorted(began) == began
    assert len({*began}) == len(began)


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
    assert (process.returncode, "rank 1" in errors) == (75, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
