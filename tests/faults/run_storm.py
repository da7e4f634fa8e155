"""G1 on whole runs: training, saving, uploading, pruning, evaluating and going on, killed at random
instants, by the same command again and again.

    python -m tests.faults.run_storm DIRECTORY [--kills 60] [--mutant NAME]

A death is one of three: SIGKILL of the training alone (its helpers finish what they have), of the
training and its helpers, or of the machine: its disk is gone too, and only what the place holds is
left. Prints one JSON line. `lost`: committed versions that were gone after a kill, or confirmed
ones that were gone from the place; `damaged`: versions there and not whole; `differing`: runs that
came to an end with another model or other losses than the undisturbed one.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from infrastructure.backup.format.store import Store
from infrastructure.deployment.deploy_training import DeploymentConfig, TrainingDeployment
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.training.resume import resumption
from tests.deployment.runs import end_copiers
from tests.faults.judge import print_figures
from tests.faults.kill_storm import in_child
from tests.forks import import_what_takes_long

ROWS = 80
DEATHS = ("process", "helpers", "machine")
SMALL_MODEL: dict[str, Any] = {
    "model.embedded.hidden_size": 32,
    "model.embedded.intermediate_size": 64,
    "model.embedded.num_layers": 2,
    "model.embedded.num_heads": 2,
    "model.embedded.vocab_size": 300,
}
SETTINGS: dict[str, Any] = {
    **SMALL_MODEL,
    "training.batch_size": 2,
    "training.gradient_accumulation": 2,
    "training.max_steps": 40,
    "training.mixed_precision": False,  # else measured by each run that begins
    "training.checkpoint_frequency": 2,
    "training.validation_frequency": 10,
    "training.validation_prompts": 0,
    "training.metrics_sinks": ["jsonl"],
    "data.validation_split": 0.1,
}


@dataclass
class Outcome:
    """Counts over a whole storm."""

    kills: int = 0
    deaths: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DEATHS, 0))
    lost: int = 0
    damaged: int = 0
    finished: int = 0
    differing: int = 0
    failed: int = 0


def configuration(directory: Path) -> DeploymentConfig:
    return DeploymentConfig(
        **{
            **SETTINGS,
            "data.path": str(directory.parent / "data.jsonl"),
            "cache.directory": str(directory.parent / "cache"),
            "output_dir": str(directory / "runs"),
            "backup.place": str(directory / "place"),
            "log_level": "ERROR",
        }
    )


def write_data(path: Path) -> None:
    draw = random.Random(0)
    rows = [(draw.randrange(100), draw.randrange(100)) for _ in range(ROWS)]
    lines = [json.dumps({"prompt": f"{a} and {b}", "completion": str(a + b)}) for a, b in rows]
    path.write_text("\n".join(lines) + "\n")


def train(directory: Path) -> None:
    """The command, as a person would give it again."""
    with (directory / "log").open("a") as log, contextlib.redirect_stderr(log):
        TrainingDeployment(configuration(directory), say=lambda line: print(line, file=log)).run()
    (directory / "done").touch()


def result_of(directory: Path) -> tuple[str, list[tuple[int, float]]]:
    """The final weights, as a hash, and the loss of each step.

    Raises:
        ValueError: there is not exactly one run.
    """
    [run] = [path.parent for path in (directory / "runs").glob("*/final")]
    weights = hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()
    records = read_metrics(run / "metrics.jsonl")
    return weights, [(record["step"], record["loss"]) for record in records if "loss" in record]


def storm(directory: Path, num_kills: int, seed: int) -> Outcome:
    """Kill until `num_kills` are reached and the last run is through."""
    torch.set_num_threads(1)
    import_what_takes_long()  # once, by the parent of all
    reference = directory / "reference"
    reference.mkdir(parents=True)
    write_data(directory / "data.jsonl")
    train_once(reference)
    started = time.monotonic()
    again = directory / "again"
    again.mkdir()
    train_once(again)
    duration_seconds = time.monotonic() - started
    outcome, draw, number = Outcome(), random.Random(seed), 0
    compare(reference, again, outcome)
    while outcome.kills < num_kills and outcome.failed < 3:
        number += 1
        disturbed = directory / f"disturbed-{number}"
        disturbed.mkdir()
        kill_until_finished(disturbed, duration_seconds, draw, outcome)
        compare(reference, disturbed, outcome)
        end_copiers(disturbed)
        shutil.rmtree(disturbed)
    return outcome


def train_once(directory: Path) -> None:
    os.waitpid(in_child(lambda: train(directory)), 0)


def kill_until_finished(
    directory: Path, duration_seconds: float, draw: random.Random, outcome: Outcome
) -> None:
    committed = confirmed = 0
    for _ in range(15):
        child = in_child(lambda: train(directory))
        time.sleep(draw.uniform(0, 0.8 * duration_seconds))
        death = draw.choice(DEATHS)
        helpers = psutil.Process(child).children(recursive=True)
        os.kill(child, signal.SIGKILL)
        for helper in helpers if death != "process" else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            outcome.failed += os.WEXITSTATUS(status) != 0
            end(helpers)
            return
        outcome.kills += 1
        outcome.deaths[death] += 1
        if death == "machine":
            end(helpers)
            end_copiers(directory)  # those of trainings that were killed without them
            shutil.rmtree(directory / "runs", ignore_errors=True)
            committed = 0
        committed = look(directory / "runs", "*/checkpoints", committed, outcome)
        confirmed = look(directory / "place", "*", confirmed, outcome)
    train_once(directory)


def end(helpers: list[psutil.Process]) -> None:
    psutil.wait_procs(helpers, timeout=60)


def look(folder: Path, pattern: str, newest_before: int, outcome: Outcome) -> int:
    """The newest step that a whole version holds; one that was there before must still be."""
    newest = 0
    for root in folder.glob(pattern):
        store = Store(root)
        name, rejected = store.newest()
        outcome.damaged += len(rejected)
        newest = max(newest, store.read(name).step if name else 0)
    outcome.lost += newest < newest_before
    return max(newest, newest_before)


def compare(reference: Path, disturbed: Path, outcome: Outcome) -> None:
    if not (disturbed / "done").exists():
        outcome.failed += 1
        print((disturbed / "log").read_text()[-2000:])
        return
    outcome.finished += 1
    outcome.differing += result_of(disturbed) != result_of(reference)


def _starts_the_epoch_anew() -> None:
    restore = resumption.restore_snapshot

    def forgetful(saved: Any, state: Any, parts: Any) -> None:
        saved.values["position"]["example"] = 0
        restore(saved, state, parts)

    resumption.restore_snapshot = forgetful  # type: ignore[attr-defined]


MUTANTS: dict[str, Callable[[], None]] = {"epoch_anew": _starts_the_epoch_anew}


def print_storm(
    label: str,
    summary: str,
    mutants: Mapping[str, Callable[[], None]],
    storm: Callable[[Path, int, int], Outcome],
) -> None:
    """The command of a storm: its arguments, its defect, and its one JSON line."""
    parser = argparse.ArgumentParser(description=summary.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=mutants)
    arguments = parser.parse_args()
    if arguments.mutant:
        mutants[arguments.mutant]()
    started = time.monotonic()
    outcome = storm(arguments.directory, arguments.kills, arguments.seed)
    seconds = round(time.monotonic() - started, 1)
    print_figures(label, {**asdict(outcome), "seconds": seconds})


def main() -> None:
    print_storm("G1 runs", str(__doc__), MUTANTS, storm)


if __name__ == "__main__":
    main()
