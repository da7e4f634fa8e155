"""The storm of G1 on a Trainer of transformers with TemperCallback in it.

    python -m tests.faults.kill_storm_bridge DIRECTORY [--kills 60] [--mutant NAME]

Prints one JSON line, as `kill_storm` does. Each training is a new process that runs the three lines
of the documentation; the undisturbed one has no callback at all.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.training.hf_bridge import callback
from infrastructure.training.hf_bridge.trainer_events import TrainerEvents
from tests.faults.judge import print_figures
from tests.faults.kill_storm import Outcome, in_child, kill_until_finished, repeated
from tests.training.hf_bridge.tiny_trainer import train as train_with_callback
from tests.training.hf_bridge.tiny_trainer import trainer_of, weights

OPTIONS: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3, "save_steps": 2}
NUM_STEPS = 12


def train(directory: Path) -> None:
    """Begin, or go on; leaves the weights."""
    trainer, _, _ = train_with_callback(directory, **OPTIONS)
    torch.save(weights(trainer.model), directory / "weights.part")
    (directory / "weights.part").rename(directory / "weights.pt")


def train_undisturbed(directory: Path) -> None:
    trainer = trainer_of(directory, **{**OPTIONS, "save_strategy": "no"})
    trainer.train()
    torch.save(weights(trainer.model), directory / "weights.pt")


def storm(directory: Path, num_kills: int, seed: int) -> Outcome:
    """Train and kill until `num_kills` trainings were killed and the last one is through."""
    torch.set_num_threads(1)
    reference = directory / "reference"
    reference.mkdir(parents=True)
    train_undisturbed(reference)  # here: what it imports, the children need not
    started = time.monotonic()
    os.waitpid(in_child(lambda: train(directory / "imports")), 0)
    duration_seconds = time.monotonic() - started

    def disturb(disturbed: Path, draw: random.Random, outcome: Outcome) -> None:
        checkpoints = disturbed / "runs" / "tiny" / "checkpoints"
        train_disturbed = partial(train, disturbed)
        kill_until_finished(train_disturbed, checkpoints, duration_seconds, draw, outcome)
        compare(reference, disturbed, outcome)

    return repeated(disturb, directory, num_kills, seed)


def compare(reference: Path, disturbed: Path, outcome: Outcome) -> None:
    if not (disturbed / "weights.pt").exists():
        return
    outcome.finished += 1
    both = [torch.load(d / "weights.pt", weights_only=True) for d in (reference, disturbed)]
    records = read_metrics(disturbed / "runs" / "tiny" / "metrics.jsonl")
    steps = [record["step"] for record in records if "kind" not in record]
    outcome.differing += not torch.equal(*both) or steps != list(range(1, NUM_STEPS + 1))


def _without(name: str) -> Callable[[], None]:
    """A mutant whose folder lacks a file; a Trainer goes on without it and says nothing."""

    def apply() -> None:
        write = callback.write_checkpoint_folder

        def incomplete(*arguments: Any) -> Path:
            folder = write(*arguments)
            (folder / name).unlink()
            return folder

        callback.write_checkpoint_folder = incomplete  # type: ignore[attr-defined]

    return apply


def _saved_before_the_evaluation() -> None:
    """A mutant that saves at the end of a step, before its evaluation has drawn random numbers."""
    step_ends = TrainerEvents.step_ends

    def too_early(self: TrainerEvents, control: Any) -> None:
        step_ends(self, control)
        self._save()

    TrainerEvents.step_ends = too_early  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "random": _without("rng_state.pth"),
    "optimizer": _without("optimizer.pt"),
    "scheduler": _without("scheduler.pt"),
    "saved_before_the_evaluation": _saved_before_the_evaluation,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS)
    options = parser.parse_args()
    if options.mutant:
        MUTANTS[options.mutant]()
    print_figures("G1", asdict(storm(options.directory, options.kills, options.seed)))


if __name__ == "__main__":
    main()
