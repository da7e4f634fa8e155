"""G1: a training is killed (SIGKILL) at random instants until it is through, again and again.

    python -m tests.faults.kill_storm DIRECTORY [--kills 200] [--mutant NAME] [--in-background]

Prints one JSON line. `lost`: committed versions that were gone after a kill; `damaged`: versions
that were there and not whole; `differing`: trainings that came to an end with other weights or
losses than the undisturbed one. A mutant is a deliberate defect that must show in one of these, or
in `failed`.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.training.checkpoints import checkpoint_manager, snapshot
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.sinks import make_sinks
from infrastructure.training.observers.run_observers import MetricsObserver
from tests.faults.judge import print_figures
from tests.training.toy_training import Training

SETTINGS: dict[str, Any] = {
    "num_epochs": 6,
    "num_examples": 32,
    "checkpoint_frequency": 2,
    "validation_frequency": 5,
}
MAX_FAILED = 5


@dataclass
class Outcome:
    """Counts over a whole storm."""

    kills: int = 0
    lost: int = 0
    damaged: int = 0
    finished: int = 0
    differing: int = 0
    failed: int = 0


def train(directory: Path) -> None:
    """Train to the end from the newest checkpoint, if there is one; leaves weights and losses."""
    observer = MetricsObserver(MetricsLogger(make_sinks(["jsonl"], directory)))
    training = Training(directory / "checkpoints", hooks=[observer], **SETTINGS)
    training.checkpoints.retention = Retention(2)
    try:
        training.resume(training.checkpoints.newest())
    except CheckpointError:
        training.run()
    torch.save(training.weights, directory / "weights.part")
    (directory / "weights.part").rename(directory / "weights.pt")


def result_of(directory: Path) -> tuple[torch.Tensor, list[tuple[int, float]]]:
    records = read_metrics(directory / "metrics.jsonl")
    losses = [(record["step"], record["loss"]) for record in records if "loss" in record]
    return torch.load(directory / "weights.pt", weights_only=True), losses


def in_child(work: Callable[[], None]) -> int:
    """The process number of a fork that does `work`; torch is imported once, by the parent."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            sys.stdout.flush()  # what it said would go with os._exit
            code = 0
        finally:
            os._exit(code)
    return child


def storm(directory: Path, num_kills: int, seed: int) -> Outcome:
    """Train and kill until `num_kills` trainings were killed and the last one is through."""
    torch.set_num_threads(1)
    Training()  # what torch imports with its first optimizer, the children need not
    reference = directory / "reference"
    reference.mkdir(parents=True)
    started = time.monotonic()
    os.waitpid(in_child(lambda: train(reference)), 0)
    duration_seconds = time.monotonic() - started

    def disturb(disturbed: Path, draw: random.Random, outcome: Outcome) -> None:
        train_disturbed = partial(train, disturbed)
        checkpoints = disturbed / "checkpoints"
        kill_until_finished(train_disturbed, checkpoints, duration_seconds / 2, draw, outcome)
        compare(reference, disturbed, outcome)

    return repeated(disturb, directory, num_kills, seed)


def repeated(
    disturb: Callable[[Path, random.Random, Outcome], None],
    directory: Path,
    num_kills: int,
    seed: int,
) -> Outcome:
    """Disturb one training after the other, until there were so many kills."""
    outcome, draw, number = Outcome(), random.Random(seed), 0
    while outcome.kills < num_kills and outcome.failed < MAX_FAILED:
        number += 1
        disturbed = directory / f"disturbed-{number}"
        disturbed.mkdir()
        disturb(disturbed, draw, outcome)
        shutil.rmtree(disturbed)
    return outcome


def kill_until_finished(
    train: Callable[[], None],
    checkpoints: Path,
    longest_seconds: float,
    draw: random.Random,
    outcome: Outcome,
) -> None:
    """Train in a child again and again, and kill each at a random instant."""
    committed = 0
    for _ in range(40):
        child = in_child(train)
        time.sleep(draw.uniform(0, longest_seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        found = newest_step(checkpoints, outcome)
        outcome.lost += found < committed
        committed = max(committed, found)
        if os.WIFEXITED(status):
            outcome.failed += os.WEXITSTATUS(status) != 0
            return
        outcome.kills += 1
    _, status = os.waitpid(in_child(train), 0)
    outcome.failed += status != 0


def newest_step(directory: Path, outcome: Outcome) -> int:
    store = Store(directory)
    name, rejected = store.newest()
    outcome.damaged += len(rejected)
    return store.read(name).step if name else 0


def compare(reference: Path, disturbed: Path, outcome: Outcome) -> None:
    if not (disturbed / "weights.pt").exists():
        return
    outcome.finished += 1
    weights, losses = result_of(disturbed)
    expected_weights, expected_losses = result_of(reference)
    outcome.differing += not torch.equal(weights, expected_weights) or losses != expected_losses


def _forgets(name: str) -> Callable[[], None]:
    """A mutant that does not put one value of a checkpoint back."""

    def apply() -> None:
        restore = snapshot.restore_snapshot

        def forgetful(saved: Any, state: Any, parts: Any) -> None:
            fresh = snapshot.take_snapshot(state, parts)
            if name in saved.tensors:
                saved.tensors[name] = fresh.tensors[name]
            else:
                saved.values[name] = fresh.values[name]
            restore(saved, state, parts)

        from tests.training import toy_training

        toy_training.restore_snapshot = forgetful  # type: ignore[attr-defined]

    return apply


def _manifest_first() -> None:
    """A mutant that commits before the objects are there."""
    write_pack = checkpoint_manager.Store.commit

    def commit(self: Store, tensors: Any, values: Any, **keywords: Any) -> str:
        objects = self.objects
        late: list[Any] = []
        put = objects.put

        def put_later(path: Path, buffers: Any, digest: str, hash_name: str) -> None:
            if path.parent.name == "versions":
                put(path, buffers, digest, hash_name)
            else:
                late.append((path, [bytes(b) for b in buffers], digest, hash_name))

        objects.put = put_later  # type: ignore[method-assign]
        try:
            name = write_pack(self, tensors, values, **keywords)
        finally:
            objects.put = put  # type: ignore[method-assign]
        time.sleep(0.03)
        for entry in late:
            put(*entry)
        return name

    checkpoint_manager.Store.commit = commit  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "random": _forgets("random"),
    "model": _forgets("model"),
    "optimizer": _forgets("optimizer"),
    "scheduler": _forgets("scheduler"),
    "position": _forgets("position"),
    "step": _forgets("step"),
    "manifest_first": _manifest_first,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS)
    parser.add_argument("--in-background", action="store_true", help="save in a helper process")
    arguments = parser.parse_args()
    if arguments.in_background:
        checkpoint_manager.BACKGROUND_BYTES = 0
    if arguments.mutant:
        MUTANTS[arguments.mutant]()
    started = time.monotonic()
    outcome = storm(arguments.directory, arguments.kills, arguments.seed)
    seconds = round(time.monotonic() - started, 1)
    print(f"{seconds} s, mutant: {arguments.mutant}", file=sys.stderr)
    print_figures("G1", asdict(outcome))


if __name__ == "__main__":
    main()
