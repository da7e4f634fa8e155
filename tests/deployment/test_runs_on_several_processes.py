"""Whole runs on several processes: killed, gone on with, and started by a launcher."""

import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.training.extensions.extension_hooks import Hook
from tests.deployment.command_process import HOLD_AT, Holding
from tests.deployment.runs import (
    ROOT,
    deploy,
    losses,
    newest_step,
    runs_of,
    small_settings,
    start_temper,
    when_saved,
)
from tests.forks import OwnFork, forked_python
from tests.slow import slow, slow_but
from tests.training.distributed.test_launch import names_of_stack

LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    # with --cpu it starts one process, whatever --num_processes says, unless there is MPI
    "accelerate": [
        *("accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"),
        *("--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"),
    ],
}


def settings_with_dropout(folder: Path, model: Path, **settings: Any) -> dict[str, Any]:
    """A small run whose random numbers show in its weights."""
    lora = {"name": str(model), "lora_config": {"r": 4, "dropout": 0.3}}
    return {**small_settings(folder, num_epochs=8), "model": lora, **settings}


def write(folder: Path, settings: dict[str, Any]) -> None:
    (folder / ".config").mkdir(parents=True, exist_ok=True)
    (folder / ".config/training_config.yaml").write_text(json.dumps(settings))  # JSON is YAML


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-3000:]
    return out


def launched(size: int, *arguments: str, folder: Path) -> list[subprocess.Popen[str]]:
    """The command as a launcher starts it so many times."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        start_temper(*arguments, folder=folder, **variables, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(size)
    ]


def ranks_of(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """The processes that the command has started, by their number."""
    children = psutil.Process(process.pid).children()
    return {child.environ().get("RANK", ""): child for child in children}


class ForkedRank(OwnFork):
    """A rank that has imported what it needs; its number and its process are in `RANKS`."""

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        super().__init__(args, **options)
        with RANKS.open("a") as file:
            file.write(json.dumps([options["env"]["RANK"], self.pid]) + "\n")


RANKS = Path("ranks.txt")


def ranks_are_forks() -> None:
    """For an agent, before it begins: to start Pythons takes longer than all that they train. They
    wait at HOLD_AT while there is a file `hold`."""
    get_observers = TrainingDeployment._observers

    def observers(self: TrainingDeployment, *parts: Any) -> list[Hook]:
        return [*get_observers(self, *parts), Holding()]

    TrainingDeployment._observers = observers  # type: ignore[method-assign]
    subprocess_handler.Popen = ForkedRank  # type: ignore[misc]
    inspect.stack = names_of_stack


def trained_weights(folder: Path) -> bytes:
    (run,) = runs_of(folder)
    return (run / "final/adapter_model.safetensors").read_bytes()


@slow
def test_a_killed_run_leaves_nobody_and_goes_on_bit_for_bit(
    tmp_path: Path, saved_llama: Path
) -> None:
    """Slow, because it is five processes of the real command: torch is imported in each."""
    reference, disturbed, fewer = (tmp_path / name for name in ("reference", "disturbed", "fewer"))
    for folder in (reference, disturbed):
        folder.mkdir()
        write(folder, settings_with_dropout(folder, saved_llama, num_processes=2))
    finished(start_temper("train", folder=reference))

    process = start_temper("train", folder=disturbed)
    run = when_saved(disturbed, 3, process)
    ranks = ranks_of(process)
    assert sorted(ranks) == ["0", "1"]
    everybody = psutil.Process(process.pid).children(recursive=True)
    process.kill()  # the agent, so that nobody starts anything again
    ranks["0"].kill()
    process.communicate(timeout=60)
    assert not psutil.wait_procs(everybody, timeout=40)[1]
    shutil.copytree(disturbed, fewer)
    at_step = newest_step(run)
    assert at_step < 40

    out = finished(start_temper("train", folder=disturbed))
    assert f"deployment.resuming_from_step(run_id={run.name}, step={at_step}," in out
    assert "2 processes" in out
    assert trained_weights(disturbed) == trained_weights(reference)
    assert losses(run) == losses(runs_of(reference)[0])
    recorded = json.loads((run / "run.json").read_text())
    assert recorded["hardware"]["processes"] == 2
    assert json.loads((run / "summary.json").read_text())["num_processes"] == 2

    settings = settings_with_dropout(fewer, saved_llama)
    settings["data"]["path"] = str(disturbed / "rows.jsonl")
    path, _ = deploy(DeploymentConfig(**settings))
    accepted = json.loads((path / "run.json").read_text())["history"]
    assert accepted[0]["changes"] == [
        {"name": "world_size", "was": 2, "is": 1, "effect": "rounds otherwise"}
    ]
    assert losses(path)[:at_step] == losses(run)[:at_step]


@pytest.mark.parametrize("launcher", slow_but([], LAUNCHERS))
def test_a_launcher_starts_all_ranks(launcher: str, tmp_path: Path, saved_llama: Path) -> None:
    """A second time all is finished already, which each process that it starts has to find."""
    settings = settings_with_dropout(tmp_path, saved_llama)
    settings["training"]["max_steps"] = 3
    write(tmp_path, settings)
    command = [sys.executable, "-m", *LAUNCHERS[launcher], "-m", "infrastructure", "train"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 processes" in done.stdout
    again = [finished(one) for one in launched(2, "train", folder=tmp_path)]
    assert "deployment.run_finished_before" in again[0]
    assert "deployment.run_finished_before" not in again[1]
    (run,) = runs_of(tmp_path)
    assert json.loads((run / "summary.json").read_text())["num_processes"] == 2
    assert len(losses(run)) == 3


@slow
def test_ctrl_c_saves_and_ends_everybody(tmp_path: Path, saved_llama: Path) -> None:
    write(tmp_path, settings_with_dropout(tmp_path, saved_llama, num_processes=2))
    process = start_temper("train", folder=tmp_path)
    run = when_saved(tmp_path, 2, process)
    everybody = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "deployment.stopped_at_step(" in out
    assert "Traceback" not in err
    assert not psutil.wait_procs(everybody, timeout=10)[1]
    assert newest_step(run) >= 2


def test_a_rank_that_dies_is_started_again_and_the_same_run_goes_on(
    tmp_path: Path, saved_llama: Path
) -> None:
    """Although `--new-run` stands on its command line."""
    settings = settings_with_dropout(tmp_path, saved_llama, num_processes=2)
    settings["training"]["num_epochs"] = 4
    write(tmp_path, settings)
    (tmp_path / "hold").touch()
    process = forked_python(
        [sys.executable, "-m", "infrastructure", "train", "--new-run"],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=ranks_are_forks,
    )
    run = when_saved(tmp_path, HOLD_AT, process)
    ranks = dict(map(json.loads, (tmp_path / RANKS).read_text().splitlines()))
    os.kill(ranks["1"], signal.SIGKILL)
    (tmp_path / "hold").unlink()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (note,) = (
        line for line in err.splitlines() if line.startswith("training.restarting_after_loss")
    )
    rank = f"training.rank_of_size_with_pid(rank=1, size=2, pid={ranks['1']})"
    killed = "core.killed_by_signal(signal=SIGKILL)"
    assert note == (
        f"training.restarting_after_loss(loss=training.rank_gone(name={rank}, fate={killed}),"
        f" name=run {run.name}, attempt=1)"
    )
    assert "Traceback" not in err
    assert f"deployment.resuming_from_step(run_id={run.name}, step=" in out
    assert runs_of(tmp_path) == [run]
    assert [step for step, _ in losses(run)] == [*range(1, 25)]


@slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("when", ["it begins", "it trains"])
def test_a_rank_that_is_stopped_is_given_up_and_started_again(
    when: str, rank: str, tmp_path: Path, saved_llama: Path
) -> None:
    """Slow, because a rank is silent for half a minute before it is lost, and has another half to
    end when it is asked to."""
    write(tmp_path, settings_with_dropout(tmp_path, saved_llama, num_processes=2))
    process = start_temper("train", folder=tmp_path)
    if when == "it trains":
        when_saved(tmp_path, 2, process)
    while rank not in (ranks := ranks_of(process)):
        time.sleep(0.05)
    ranks[rank].send_signal(signal.SIGSTOP)
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    (note,) = (
        line for line in err.splitlines() if line.startswith("training.restarting_after_loss")
    )
    assert re.search(rf"training\.rank_of_size(_with_pid)?\(rank={rank}, size=2", note)
    assert "deployment.stopped_at_step" not in err
    (run,) = runs_of(tmp_path)
    assert [step for step, _ in losses(run)] == [*range(1, 49)]
