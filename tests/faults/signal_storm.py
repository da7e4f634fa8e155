"""G10: commands get one to four signals, 0.01 to 0.5 s apart, at random instants, and go on.

    python -m tests.faults.signal_storm DIRECTORY [--sequences 12] [--kinds orpo,ranks,sweep,queue]

Prints one JSON line. `sequences`: how many were sent, each to a command that lived;
`unsaved`: after which a step that was logged is in no version; `failed`: exit codes that are of no
signal which was sent; `differing`: what was trained to its end, with other weights than where
nothing disturbed it. Our own loop alone, with more of its instants, is `stop_storm`.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.backup.format.store import Store
from infrastructure.commands.main import main_of_process
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.training.core.state import TrainingState
from infrastructure.training.hf_bridge.bridged_training import BridgedTraining
from infrastructure.training.hf_bridge.trainer_events import SaveTiming, TrainerEvents
from tests.conftest import save_tiny_llama
from tests.deployment.runs import detached_trainings_are_forks, small_settings
from tests.faults.judge import print_figures
from tests.faults.kill_storm import in_child
from tests.faults.stop_storm import draw_sequence, send, sleep
from tests.training.methods.method_runs import (
    import_trl,
    methods_here,
    settings_of,
    trained_weights,
)

OTHERS = ("ranks", "sweep", "queue")
STEP_SECONDS, SAVE_SECONDS = 0.04, 0.3
MOST_SESSIONS = 12
SETTLED_SECONDS = 60.0
WORDS: dict[str, list[list[str]]] = {
    "ranks": [["train", "--num-processes", "2"]],
    "sweep": [
        ["sweep", "--search", "learning_rate=0.001,0.01", "--sampler", "grid", "--pruner", "none"]
    ],
    "queue": [["queue", "run"]],
}


@dataclass
class Outcome:
    """Counts over a whole storm."""

    sequences: int = 0
    signals: int = 0
    stopped: int = 0
    unsaved: int = 0
    finished: int = 0
    differing: int = 0
    failed: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def prepare(kind: str, folder: Path, base: Path) -> None:
    """Make the folder that the command is given in."""
    (folder / ".config").mkdir(parents=True)
    if kind in OTHERS:
        settings = small_settings(folder, num_epochs=4, checkpoint_frequency=100, seed=4)
    else:
        more: dict[str, Any] = {"training": {"checkpoint_frequency": 3}}
        settings = settings_of(kind, folder, base, base.with_name("teacher"), **more)
    (folder / ".config/training_config.yaml").write_text(json.dumps(settings))
    if kind == "queue":
        for rate in ("0.001", "0.01"):
            words = ["queue", "add", "--learning-rate", rate]
            _, status = os.waitpid(command(words, folder), 0)
            if status:
                raise RuntimeError((folder / "words.txt").read_text())


def command(words: Sequence[str], folder: Path) -> int:
    """The process of a command in a fork, whose steps and saves take a while."""

    def run() -> None:
        os.chdir(folder)
        os.setsid()
        file = os.open("words.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        slow_down()
        sys.argv = ["temper", *words]
        with detached_trainings_are_forks():
            code = main_of_process()
        sys.stdout.flush()
        os._exit(code)

    return in_child(run)


def slow_down() -> None:
    """Most signals come inside a step or a save then."""
    step, save = TrainerEvents.micro_batch_done, SaveTiming.save

    def slow_step(events: TrainerEvents) -> None:
        sleep(STEP_SECONDS)
        step(events)

    def slow_save(saves: SaveTiming, state: TrainingState) -> None:
        if saves.due is not None:
            sleep(SAVE_SECONDS)
        save(saves, state)

    TrainerEvents.micro_batch_done = slow_step  # type: ignore[method-assign]
    SaveTiming.save = slow_save  # type: ignore[method-assign]


def runs_in(folder: Path) -> list[Path]:
    return sorted({path.parent for path in (folder / "runs").glob("**/run.json")})


def unsaved_steps(run: Path) -> int:
    """Steps that were logged and that no version holds."""
    store = Store(run / "checkpoints")
    name, _ = store.newest()
    saved = store.read(name).step if name else 0
    if not (run / "metrics.jsonl").exists():
        return 0
    records = read_metrics(run / "metrics.jsonl")
    return max((r["step"] for r in records if "loss" in r), default=0) - saved


def settled(folder: Path) -> None:
    """Wait until no process trains any more: those of a sweep or a queue save by themselves."""
    deadline = time.monotonic() + SETTLED_SECONDS
    while time.monotonic() < deadline:
        trainers = [read_trainer(run) for run in runs_in(folder)]
        if not any(one is not None and one.is_alive for one in trainers):
            return
        time.sleep(0.05)


def result(folder: Path) -> list[list[float]]:
    return sorted(trained_weights(run / "final").tolist() for run in runs_in(folder))


def storm(directory: Path, kinds: Sequence[str], num_sequences: int, seed: int) -> Outcome:
    """Disturb one command after the other, each until it has come to its end."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_trl()
    base = save_tiny_llama(directory / "base")
    save_tiny_llama(directory / "teacher")
    outcome, draw = Outcome(), random.Random(seed)
    for kind in kinds:
        calm = directory / kind / "calm"
        prepare(kind, calm, base)
        began = time.monotonic()
        ended = [os.waitpid(command(words, calm), 0)[1] for words in WORDS.get(kind, [["train"]])]
        if any(ended):
            raise RuntimeError((calm / "words.txt").read_text()[-3000:])
        seconds, expected, number = time.monotonic() - began, result(calm), 0
        while outcome.by_kind.get(kind, 0) < num_sequences:
            number += 1
            folder = directory / kind / f"disturbed-{number}"
            prepare(kind, folder, base)
            disturb(kind, folder, seconds, draw, outcome)
            outcome.finished += 1
            if result(folder) != expected:
                outcome.differing += 1
                outcome.wrong.append(f"{folder}: other weights")
        print(kind, json.dumps(asdict(outcome)), file=sys.stderr, flush=True)
    return outcome


def disturb(kind: str, folder: Path, seconds: float, draw: random.Random, outcome: Outcome) -> None:
    [words] = WORDS.get(kind, [["train"]])
    for _ in range(MOST_SESSIONS):
        steps = {run: unsaved_steps(run) for run in runs_in(folder)}
        child = command(words, folder)
        time.sleep(draw.uniform(0.0, seconds))
        sent = send(child, draw_sequence(draw))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        settled(folder)
        outcome.sequences += bool(sent)
        outcome.signals += len(sent)
        outcome.by_kind[kind] = outcome.by_kind.get(kind, 0) + bool(sent)
        what = f"{folder}: {[signal.Signals(n).name for n in sent]} ended with {code}"
        lost = {run.name: n for run in runs_in(folder) if (n := unsaved_steps(run)) > 0}
        if lost and lost != {run.name: n for run, n in steps.items()}:
            outcome.unsaved += 1
            outcome.wrong.append(f"{what}, unsaved {lost}")
        allowed = {0, *(128 + n for n in sent), *(-n for n in sent)}
        if code not in allowed:
            outcome.failed += 1
            outcome.wrong.append(what)
        if code == 0:
            break
        outcome.stopped += 1
    _, status = os.waitpid(command(words, folder), 0)
    if status:
        outcome.failed += 1
        outcome.wrong.append(f"{folder}: undisturbed, it ended with {status}")


def _third_ctrl_c_raises() -> None:
    """As it was: whoever presses it often enough loses what is not saved."""
    BridgedTraining.may_break_off = property(lambda self: True)  # type: ignore[assignment]


def _ends_without_its_last_save() -> None:
    save = SaveTiming.request

    def request(saves: SaveTiming, kind: SaveKind) -> None:
        if kind is not SaveKind.STOPPED:
            save(saves, kind)

    SaveTiming.request = request  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "breaks_off_any_step": _third_ctrl_c_raises,
    "ends_without_its_last_save": _ends_without_its_last_save,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sequences", type=int, default=12, help="of each kind, or one more")
    parser.add_argument("--kinds", default=",".join([*methods_here(), *OTHERS]))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS)
    arguments = parser.parse_args()
    if arguments.mutant:
        MUTANTS[arguments.mutant]()
    started = time.monotonic()
    outcome = storm(
        arguments.directory, arguments.kinds.split(","), arguments.sequences, arguments.seed
    )
    seconds = round(time.monotonic() - started, 1)
    print_figures("G10", {**asdict(outcome), "seconds": seconds})


if __name__ == "__main__":
    main()
