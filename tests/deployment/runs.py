"""Runs of the embedded model that are small enough for a test, in this process or their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from infrastructure.backup.replication import copier_client
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.helper_process import HelperProcess
from infrastructure.deployment import detached
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.run.checkpoint_paths import by_step, step_of
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from tests.forks import ForkedPython, forked_python

ROOT = Path(__file__).resolve().parents[2]


def write_rows(path: Path, first: int = 100, last: int = 124) -> Path:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(first, last)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def small_settings(folder: Path, **training: Any) -> dict[str, Any]:
    """A run in `folder` of 24 rows, 4 a step: about 11 steps in 2 epochs."""
    data = folder / "rows.jsonl"
    if not data.exists():
        write_rows(data)
    values = {
        **{"batch_size": 4, "num_epochs": 2, "warmup_steps": 1, "validation_prompts": 0},
        **{"checkpoint_frequency": 1, "keep_checkpoints": 99, "metrics_sinks": ["jsonl"]},
    }
    return {
        "model": {
            "embedded": {
                **{"hidden_size": 32, "num_layers": 1, "num_heads": 2},
                **{"intermediate_size": 32, "vocab_size": 280, "max_positions": 64},
            }
        },
        "data": {"path": str(data), "max_length": 64, "num_workers": 0},
        "training": {**values, **training},
        "cache": {"directory": str(folder / "cache")},
        "output_dir": str(folder / "runs"),
        "device": "cpu",
        # Each training would be checked first, for a sixth of its time.
        "enable_testing": False,
    }


def small_config(folder: Path, **training: Any) -> DeploymentConfig:
    return DeploymentConfig(**small_settings(folder, **training))


def deploy(config: DeploymentConfig, **options: Any) -> tuple[Path, list[str]]:
    """Run to the end; the run's directory and what was said."""
    lines: list[str] = []
    summary = TrainingDeployment(config, say=lines.append, **options).run()
    return Path(summary["paths"]["run"]), lines


class ForkedHelper(HelperProcess, ForkedPython):
    """A helper that has imported what it needs."""


def detached_trainings_are_forks() -> Any:
    """Inside, what this process starts to train by itself is no Python of its own."""
    return mock.patch.object(detached, "HelperProcess", ForkedHelper)


def copiers_are_forks() -> Any:
    """Inside, a copier with a part of one's own has imported PyTorch already."""
    return mock.patch.object(copier_client, "HelperProcess", ForkedHelper)


def runs_of(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "runs").glob("*/run.json"))


def newest_step(run: Path) -> int:
    return step_of(CheckpointManager(run / "checkpoints").newest())


def losses(run: Path) -> list[tuple[int, float]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(r["step"], r["loss"]) for r in records if "loss" in r]


def start_temper(*arguments: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """The command in a process of its own; `folder` has its configuration file."""
    command = [sys.executable, "-m", "infrastructure", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forked_python(command, cwd=folder, env={**os.environ, **variables}, text=True, **pipes)


def write_settings(folder: Path, **training: Any) -> None:
    """Make `temper train` without flags the small run, from `folder`."""
    (folder / ".config").mkdir(exist_ok=True)
    path = folder / ".config/training_config.yaml"
    path.write_text(json.dumps(small_settings(folder, **training)))  # JSON is YAML


def when_saved(folder: Path, step: int, process: subprocess.Popen[str]) -> Path:
    """The run in `folder`, as soon as it has a checkpoint of at least `step`."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for run in runs_of(folder):
            found = by_step(CheckpointManager(run / "checkpoints").store)
            if max(found, default=0) >= step:
                return run
        if process.poll() is not None:
            raise AssertionError(f"it ended: {process.communicate()}")
        time.sleep(0.02)
    raise AssertionError("no checkpoint in two minutes")


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    """Send a signal and wait: exit code, output, errors."""
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def end_copiers(folder: Path) -> None:
    """Kill the copiers of runs in `folder`, wherever they were started."""
    for process in psutil.process_iter(["cmdline"]):
        is_copier = any("copier_process" in part for part in process.info["cmdline"] or [])
        if not is_copier:
            continue
        try:
            files = [file.path for file in process.open_files()]
        except psutil.Error:
            continue
        if any(Path(path).is_relative_to(folder) for path in files):
            process.kill()
            psutil.wait_procs([process], timeout=10)
