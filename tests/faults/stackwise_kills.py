"""Stack-wise training is killed at any instant, in every phase and while a cache is written; the
same command goes on to the same weights.

    python -m tests.faults.stackwise_kills DIRECTORY [--kills 12] [--seed 0]

Prints one JSON line. `differing`: the finished model, or the losses, are not those of the
undisturbed run; `failed`: the same command did not go on; `in_cache`: kills while activations were
being written; `phases`: in how many phases it was killed.
"""

import argparse
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.files import paths_below
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.monitoring.records.run_reader import METRICS_FILE
from tests.deployment.runs import losses, runs_of, write_rows
from tests.faults.judge import print_figures
from tests.faults.kill_storm import in_child
from tests.faults.run_storm import SMALL_MODEL
from tests.forks import import_what_takes_long

SETTINGS: dict[str, Any] = {
    **SMALL_MODEL,
    "model.embedded.num_layers": 3,
    "training.mode": "layerwise",
    "training.num_epochs": 2,
    "training.cache_activations": True,
    "training.cache_dtype": "fp32",
    "training.quantization_enabled": True,
    "training.batch_size": 4,
    "training.checkpoint_frequency": 2,
    "training.validation_prompts": 0,
    "training.metrics_sinks": ["jsonl"],
    "data.max_length": 64,
    "data.num_workers": 0,
    "log_level": "ERROR",
}
ROWS = 96


def train(directory: Path) -> None:
    """The command, in this process."""
    places = {
        "data.path": str(directory.parent / "rows.jsonl"),
        "cache.directory": str(directory.parent / "cache"),
        "training.cache_dir": str(directory / "kept"),
        "output_dir": str(directory / "runs"),
    }
    config = DeploymentConfig(**{**SETTINGS, **places})
    TrainingDeployment(config, say=lambda line: None).run()


def weights(directory: Path) -> bytes:
    [run] = runs_of(directory)
    return (run / "final/model.safetensors").read_bytes()


def pages(directory: Path) -> int:
    """Files in the cache, finished or not."""
    return sum(1 for path in paths_below(directory / "kept") if path.is_file())


def phase_of(directory: Path, steps_per_phase: int) -> int:
    runs = runs_of(directory)
    has_begun = bool(runs) and (runs[0] / METRICS_FILE).exists()
    return len(losses(runs[0])) // steps_per_phase if has_begun else 0


def kill_one(directory: Path, seconds: float, at_cache: bool) -> tuple[bool, bool]:
    """Start the command and kill it: whether it had ended before, and whether a page was new."""
    before = pages(directory)
    child = in_child(lambda: train(directory))
    deadline = time.monotonic() + seconds
    while True:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True, False
        is_writing = at_cache and pages(directory) > before + 2
        if time.monotonic() >= deadline or is_writing:
            break
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False, is_writing


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    directory = options.directory.resolve()
    torch.set_num_threads(1)
    import_what_takes_long()
    directory.mkdir(parents=True, exist_ok=True)
    write_rows(directory / "rows.jsonl", 100, 100 + ROWS)
    reference = directory / "reference"
    reference.mkdir()
    began = time.monotonic()
    os.waitpid(in_child(lambda: train(reference)), 0)
    longest = time.monotonic() - began
    expected, expected_losses = weights(reference), losses(runs_of(reference)[0])
    outcome = {"kills": 0, "in_cache": 0, "runs": 0, "differing": 0, "failed": 0}
    phases: set[int] = set()
    draw = random.Random(options.seed)
    while outcome["kills"] < options.kills:
        run = directory / f"disturbed-{outcome['runs']}"
        run.mkdir()
        is_over = False
        for _ in range(4):
            if outcome["kills"] >= options.kills or is_over:
                break
            is_over, in_cache = kill_one(run, draw.uniform(0.2, longest), draw.random() < 0.5)
            if not is_over:
                outcome["kills"] += 1
                outcome["in_cache"] += in_cache
                phases.add(phase_of(run, len(expected_losses) // 3))
        _, status = os.waitpid(in_child(lambda run=run: train(run)), 0)  # type: ignore[misc]
        outcome["failed"] += os.waitstatus_to_exitcode(status) != 0
        outcome["runs"] += 1
        found = runs_of(run)
        is_same = bool(found) and (found[0] / "final").is_dir() and weights(run) == expected
        is_same = is_same and losses(found[0]) == expected_losses
        outcome["differing"] += not is_same
        if is_same:
            shutil.rmtree(run)
    print_figures("G1 stackwise", {**outcome, "phases": len(phases)})


if __name__ == "__main__":
    main()
