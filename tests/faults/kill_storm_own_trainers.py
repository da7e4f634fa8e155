"""Trainers that people write (early stopping, the best model at the end, an optimizer of one's own,
SFT, DPO, GRPO, Seq2Seq), killed at random instants and run again: `make storm-callback`.

    python -m tests.faults.kill_storm_own_trainers [--kills 70] [--kind NAME …] [--mutant NAME]

Without arguments: 70 kills of all kinds, then the mutants, each of which must show.

Each is run undisturbed without the callback. Then it is killed (SIGKILL) and run by the same script
again and again; after every third kill another machine resumes it from the place alone. Prints one
JSON line: `differing` counts trainings with other weights, logs, means, numbers of steps or another
`final/` than the undisturbed one.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tqdm import tqdm

from infrastructure.training.hf_bridge import bridged_training
from infrastructure.training.hf_bridge.carried_state import CarriedState
from tests.deployment.runs import end_copiers
from tests.faults.judge import Figures, print_figures, run_module
from tests.faults.kill_storm import in_child
from tests.training.hf_bridge.own_trainers import KINDS, NAME, SAVED, callback_of, trained

OF_A_STORE = ("objects", "versions")
MOST_KILLS_OF_ONE = 6
NUM_KILLS, NUM_MUTANT_KILLS = 70, 20
MODULE = "tests.faults.kill_storm_own_trainers"


@dataclass
class Outcome:
    """Counts over a whole storm."""

    kills: int = 0
    moved: int = 0
    finished: int = 0
    failed: int = 0
    differing: int = 0
    how: list[str] = field(default_factory=list)


def train(kind: str, directory: Path, place: Path | None) -> None:
    """Begin, or resume; leaves what came of it."""
    result = trained(kind, directory, callback_of(directory, place))
    torch.save(result, directory / "result.part")
    (directory / "result.part").rename(directory / "result.pt")


def differences(kind: str, directory: Path, expected: dict[str, Any], saved: Path) -> list[str]:
    """What of the result is not that of the undisturbed training, which saved its model itself."""
    result = torch.load(directory / "result.pt", weights_only=True)
    plain = [name for name in expected if name != "weights"]
    found = [name for name in plain if _spelled(result[name]) != _spelled(expected[name])]
    if not _is_same(result["weights"], expected["weights"]):
        found.append("weights")
    for path in saved.glob("*.safetensors"):
        for folder in (directory / "runs" / NAME / "final", directory / SAVED):
            whole = folder / path.name
            if not whole.is_file() or not _is_same(load_file(whole), load_file(path)):
                found.append(folder.name)
    return [f"{kind}: {one}" for one in found]


def _spelled(value: object) -> str:
    return json.dumps(value, sort_keys=True)  # where NaN is NaN


def _is_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def move_away(directory: Path, place: Path) -> None:
    """This machine is gone: what the place has is all that is left."""
    store = directory / "runs" / NAME / "checkpoints"
    if not any((store / "versions").glob("*.json")):
        return
    end_copiers(directory)
    shutil.rmtree(place / NAME, ignore_errors=True)
    for part in OF_A_STORE:
        shutil.copytree(store / part, place / NAME / part)
    shutil.rmtree(directory)
    directory.mkdir()


def disturb(
    kind: str,
    directory: Path,
    undisturbed: Path,
    expected: dict[str, Any],
    seconds: float,
    draw: random.Random,
) -> Outcome:
    """Kill one training a few times, and compare what comes of it in the end."""
    outcome = Outcome()
    here, place = directory / "here", directory / "place"
    here.mkdir(parents=True)
    place.mkdir()
    used: Path | None = None
    for number in range(1, MOST_KILLS_OF_ONE + 1):
        child = in_child(partial(train, kind, here, used))
        time.sleep(draw.uniform(0.1 * seconds, 0.9 * seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            outcome.failed += os.WEXITSTATUS(status) != 0
            break
        outcome.kills += 1
        used = None
        if number % 3 == 2:
            move_away(here, place)
            used, outcome.moved = place, outcome.moved + 1
    if not (here / "result.pt").exists():
        outcome.failed += os.waitpid(in_child(partial(train, kind, here, used)), 0)[1] != 0
    if (here / "result.pt").exists():
        outcome.finished += 1
        outcome.how = differences(kind, here, expected, undisturbed / SAVED)
        outcome.differing += bool(outcome.how)
    return outcome


def storm(directory: Path, kinds: list[str], num_kills: int, seed: int) -> dict[str, Any]:
    """Disturb one kind after the other until there were so many kills."""
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own is shared by forks: one that is killed may hold it
    expected: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}
    for kind in kinds:
        folder, timed = directory / kind, directory / f"{kind}-timed"
        folder.mkdir(parents=True)
        timed.mkdir()
        expected[kind] = trained(kind, folder, None)  # here: what it imports, the children need not
        began = time.monotonic()
        os.waitpid(in_child(partial(train, kind, timed, None)), 0)
        seconds[kind] = time.monotonic() - began
    total, draw, number = Outcome(), random.Random(seed), 0
    while (total.kills < num_kills or not total.moved) and total.failed < len(kinds):
        kind, number = kinds[number % len(kinds)], number + 1
        folder = directory / f"disturbed-{number}"
        undisturbed = directory / kind
        one = disturb(kind, folder, undisturbed, expected[kind], seconds[kind], draw)
        for name, count in vars(one).items():
            setattr(total, name, getattr(total, name) + count)
        end_copiers(folder)
        shutil.rmtree(folder)
    return {"kinds": kinds, "trainings": number, **vars(total)}


def _forgets(part: str) -> Callable[[], None]:
    """A mutant that loses a part of what a Trainer remembers."""

    def apply() -> None:
        restore = CarriedState.restore

        def forgetful(self: CarriedState, tensors: Any, values: Any) -> None:
            if part == "epoch":
                tensors = {**tensors, "epoch": {}}
            else:
                values = {**values, "attributes": {}}
            restore(self, tensors, values)

        CarriedState.restore = forgetful  # type: ignore[method-assign]

    return apply


def _forgets_patience() -> None:
    """A mutant that does not put the states of callbacks back."""
    bridged_training.restore_callbacks = lambda trainer, states: None  # type: ignore[attr-defined]


def _forgets_the_best() -> None:
    """A mutant whose versions hold no best model."""
    from infrastructure.training.hf_bridge import trainer_state

    trainer_state.best_files = lambda folder: {}  # type: ignore[attr-defined]


MUTANTS: dict[str, Callable[[], None]] = {
    "attributes": _forgets("attributes"),
    "epoch": _forgets("epoch"),
    "patience": _forgets_patience,
    "best": _forgets_the_best,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--mutant", choices=MUTANTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.mutant:
        MUTANTS[options.mutant]()
    sys.stdout = sys.stderr  # the Trainers print there; the result has it to itself
    with tempfile.TemporaryDirectory() as folder:
        figures = storm(Path(folder), options.kind, options.kills or NUM_KILLS, options.seed)
    if options.kills is None:
        figures |= _mutants_caught()
    sys.stdout = sys.__stdout__
    print_figures("G1 trainers", figures)


def _mutants_caught() -> Figures:
    few = ("--kills", str(NUM_MUTANT_KILLS), "--kind", "plateau")
    found = [run_module(MODULE, *few, "--mutant", name) for name in MUTANTS]
    return {"mutants": len(found), "mutants_caught": sum(bool(one["differing"]) for one in found)}


if __name__ == "__main__":
    main()
