"""G12: two processes want to go on with the same run, 200 times; and one that holds it is killed.

    python -m tests.faults.races [--races 200] [--mutant no_lock]

Two trainings begin at once on one run directory, as two sessions would, each as
`TrainingDeployment` does: it takes the run, or is told who has it. The one that has it goes on from
the newest version, saves through the helper process, and is killed in every third race, so that the
helper outlives it for a moment. Prints one JSON line. `both_wrote`: races in which two processes
were in the run at once, or a version has another parent than the one before; `lost`: committed
versions that were gone; `failed`: races in which nobody could write; `slowest_takeover_seconds`:
from a kill until the next process had the run.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import TemperError
from infrastructure.run import lock as run_lock
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints import checkpoint_manager
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.snapshot import Snapshot
from tests.faults.judge import print_figures
from tests.faults.kill_storm import in_child

STEPS_OF_A_TURN = 2
SECONDS_TO_TAKE_OVER = 30.0
MOST_CARELESS = 5
REFUSED = 3

Enter = Callable[[Path], object]


@dataclass
class Outcome:
    """Counts over all races; `refused` is what should happen to the second process."""

    races: int = 0
    kills: int = 0
    refused: int = 0
    both_wrote: int = 0
    lost: int = 0
    failed: int = 0
    slowest_takeover_seconds: float = 0.0


def enter_and_save(run: Path, notes: Path, locks: bool) -> None:
    """Take the run, go on from its newest version, save twice; write down when one was in it."""
    enter: Enter = run_lock.only_trainer_of if locks else nullcontext
    try:
        with enter(run):  # type: ignore[attr-defined]
            note(notes, "in")
            save_some(run / "checkpoints", notes)
            note(notes, "out")
    except (ValueError, TemperError) as error:
        note(notes, f"refused {error}")
        os._exit(REFUSED)


def save_some(directory: Path, notes: Path) -> None:
    manager = CheckpointManager(directory, Retention(99))
    first = 0
    if manager.store.versions():
        first = step_of(manager.newest())
    try:
        for step in range(first + 1, first + 1 + STEPS_OF_A_TURN):
            weights = {"a": torch.full((2000,), float(step))}
            manager.begin(Snapshot({"model": weights}, {"step": step}))
            for path in manager.collect(wait=True):
                note(notes, f"committed {path.stem}")
    finally:
        manager.close()


def note(notes: Path, text: str) -> None:
    """One line, whole, at the end of a file that several processes write."""
    descriptor = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{time.monotonic():.6f} {os.getpid()} {text}\n".encode())
    os.close(descriptor)


def race(run: Path, notes: Path, draw: random.Random, kills: bool, locks: bool) -> list[int]:
    """Two processes at once, the first one killed if `kills`; their exit codes."""
    children = [in_child(lambda: enter_and_save(run, notes, locks)) for _ in range(2)]
    if kills:
        time.sleep(draw.uniform(0.0, 0.06))
        os.kill(children[0], signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def storm(folder: Path, num_races: int, seed: int, locks: bool = True) -> Outcome:
    """Races on one run, one after the other."""
    torch.set_num_threads(1)
    checkpoint_manager.BACKGROUND_BYTES = 0
    run, draw, outcome = folder / "run", random.Random(seed), Outcome()
    run.mkdir()
    for number in range(num_races):
        notes = folder / f"notes-{number}"
        codes = race(run, notes, draw, kills=number % 3 == 2, locks=locks)
        outcome.races += 1
        outcome.kills += codes.count(-signal.SIGKILL)
        outcome.refused += codes.count(REFUSED)
        if codes.count(-signal.SIGKILL):
            takeover_seconds = take_over(run, notes, locks)
            outcome.slowest_takeover_seconds = max(
                outcome.slowest_takeover_seconds, round(takeover_seconds, 2)
            )
        judge(run, notes, outcome)
    outcome.failed += outcome.slowest_takeover_seconds > SECONDS_TO_TAKE_OVER
    return outcome


def take_over(run: Path, notes: Path, locks: bool) -> float:
    """Seconds until another process has done its turn in the run of a killed one."""
    started = time.monotonic()
    while time.monotonic() < started + 2 * SECONDS_TO_TAKE_OVER:
        code = os.waitpid(in_child(lambda: enter_and_save(run, notes, locks)), 0)[1]
        if code == 0:
            break
        time.sleep(0.02)
    return time.monotonic() - started


def judge(run: Path, notes: Path, outcome: Outcome) -> None:
    """Compare what the processes say with what lies on the disk."""
    lines = [line.split(" ", 3) for line in notes.read_text().splitlines()]
    inside: set[str] = set()
    twice = False
    for _, process, what, *_ in lines:
        if what == "in":
            twice |= bool(inside & alive(lines, process))
            inside.add(process)
        elif what == "out":
            inside.discard(process)
    store = Store(run / "checkpoints")
    names = store.versions()
    parents = [store.read(name).parent for name in names]
    outcome.both_wrote += twice or parents[:-1] != names[1:]
    committed = {more[0] for _, _, what, *more in lines if what == "committed"}
    outcome.lost += len(committed - set(names))
    outcome.failed += not committed
    newest, rejected = store.newest()
    outcome.lost += len(rejected) + (bool(committed) and newest is None)


def alive(lines: list[list[str]], newcomer: str) -> set[str]:
    """Processes that came to their end by themselves, so that they were alive until then."""
    return {process for _, process, what, *_ in lines if what == "out"} - {newcomer}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--races", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--careless-races", type=int, default=10)
    parser.add_argument("--mutant", choices=["no_lock"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = storm(Path(folder), arguments.races, arguments.seed, not arguments.mutant)
    found = asdict(outcome)
    if arguments.mutant is None:
        num_caught = 0
        for seed in range(MOST_CARELESS):  # where the machine let one process go after the other
            with tempfile.TemporaryDirectory() as folder:
                careless = storm(Path(folder), arguments.careless_races, seed, locks=False)
            if num_caught := int(careless.both_wrote > 0):
                break
        found |= {"mutants": 1, "mutants_caught": num_caught}
    print_figures("G12", found)


if __name__ == "__main__":
    main()
