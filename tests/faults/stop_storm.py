"""G10: a training is told to stop at random instants by one to four signals, and goes on.

    python -m tests.faults.stop_storm DIRECTORY [--stops 60] [--mutant NAME]

Prints one JSON line. `unsaved`: stops after which a step that was logged is in no checkpoint;
`differing`: trainings that came to an end with other weights or losses than the undisturbed one;
`slow`: stops that took longer than patience, a step and a save. Steps, evaluations and one step
that is like the compiling of a model take so long that most signals come inside one of them; some
saves take longer than patience lasts.
"""

import argparse
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.core import stop_signals as stop_signals_module
from infrastructure.core.errors import CheckpointError
from infrastructure.core.stop_signals import stop_signals
from infrastructure.deployment.deploy_training import stop_on_signals
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.loop import loop as loop_module
from infrastructure.training.loop.error_recovery import ErrorRecovery
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.sinks import make_sinks
from infrastructure.training.observers.run_observers import MetricsObserver
from infrastructure.training.recovery import safe_point as boundary
from tests.faults.judge import print_figures
from tests.faults.kill_storm import compare, in_child
from tests.training.toy_training import Training

SETTINGS: dict[str, Any] = {
    "num_epochs": 4,
    "num_examples": 24,
    "checkpoint_interval": None,
    "validation_frequency": 2,
}
STEP_SECONDS, EVALUATION_SECONDS, COMPILE_SECONDS, SAVE_SECONDS = 0.01, 0.2, 0.5, 0.4
COMPILED_STEP = 6
PATIENCE_SECONDS = 0.15
SLOW_SECONDS = 12.0
FINISHED, STOPPED = 0, 75


@dataclass
class Outcome:
    """Counts over a whole storm; the first three are of the same names as in `kill_storm`."""

    stops: int = 0
    unsaved: int = 0
    slow: int = 0
    finished: int = 0
    differing: int = 0
    failed: int = 0


class Slow(Observer):
    """Takes time inside a step, as real ones do."""

    def step_start(self, state: TrainingState) -> None:
        if state.step + 1 == COMPILED_STEP:
            sleep(COMPILE_SECONDS)

    def after_loss(self, state: TrainingState) -> None:
        sleep(STEP_SECONDS)


def sleep(seconds: float) -> None:
    """In pieces: Python goes back to sleep after a signal."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.002)


def train(directory: Path) -> int:
    """Train to the end, or until a signal; goes on from the newest checkpoint."""
    metrics = MetricsObserver(MetricsLogger(make_sinks(["jsonl"], directory)))
    training = Training(directory / "checkpoints", hooks=[Slow(), metrics], **SETTINGS)
    training.checkpoints.retention = Retention(2)
    training.loop.evaluate = lambda: evaluate(training)
    training.checkpointer.begin = slowly(training.checkpointer.begin)
    stop_signals_module.PATIENCE_SECONDS = PATIENCE_SECONDS
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)  # one that comes after the end has nothing to stop
    try:
        with stop_on_signals(training.state, lambda: training.loop.may_break_off):
            (directory / "ready").touch()
            go_on(training)
    except KeyboardInterrupt:
        return STOPPED
    if training.state.is_interrupted:
        return STOPPED
    torch.save(training.weights, directory / "weights.part")
    (directory / "weights.part").rename(directory / "weights.pt")
    return FINISHED


def go_on(training: Training) -> None:
    try:
        checkpoint = training.checkpoints.newest()
    except CheckpointError:
        training.run()
        return
    training.resume(checkpoint)


def evaluate(training: Training) -> dict[str, float]:
    for _ in range(10):
        torch.rand(1)  # broken off, it must draw the same when it is done again
        time.sleep(EVALUATION_SECONDS / 10)
        training.loop.poll(training.state)
    return {"eval_loss": 1.0}


def slowly(save: Callable[[TrainingState, str], None]) -> Callable[[TrainingState, str], None]:
    """The last save of a stopped training takes long, as one over a slow disk does."""

    def slow_save(state: TrainingState, kind: str) -> None:
        if state.is_interrupted:
            sleep(SAVE_SECONDS)
        save(state, kind)

    return slow_save


def storm(directory: Path, num_stops: int, seed: int) -> Outcome:
    """Train and stop until `num_stops` trainings were stopped and the last one is through."""
    torch.set_num_threads(1)
    Training()  # what torch imports with its first optimizer, the children need not
    reference = directory / "reference"
    reference.mkdir(parents=True)
    started = time.monotonic()
    os.waitpid(start(reference), 0)
    duration_seconds = time.monotonic() - started
    outcome, draw, number = Outcome(), random.Random(seed), 0
    while outcome.stops < num_stops and outcome.failed < 5:
        number += 1
        disturbed = directory / f"disturbed-{number}"
        disturbed.mkdir()
        stop_until_finished(disturbed, duration_seconds, draw, outcome)
        compare(reference, disturbed, outcome)
        shutil.rmtree(disturbed)
    return outcome


def start(directory: Path) -> int:
    return in_child(lambda: os._exit(train(directory)))


def stop_until_finished(
    directory: Path, duration_seconds: float, draw: random.Random, outcome: Outcome
) -> None:
    for _ in range(40):
        (directory / "ready").unlink(missing_ok=True)
        child = start(directory)
        while not (directory / "ready").exists():
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                raise RuntimeError("a training died before it began")
            time.sleep(0.002)
        time.sleep(draw.uniform(0.005, duration_seconds / 2))
        send(child, draw_sequence(draw))
        signalled_at = time.monotonic()
        _, status = os.waitpid(child, 0)
        outcome.slow += time.monotonic() - signalled_at > SLOW_SECONDS
        code = os.waitstatus_to_exitcode(status)
        outcome.failed += code not in (FINISHED, STOPPED)
        if code != STOPPED:
            return
        outcome.stops += 1
        outcome.unsaved += saved_step(directory) < logged_step(directory)
    os.waitpid(start(directory), 0)


def draw_sequence(draw: random.Random) -> list[tuple[float, int]]:
    """One to four signals, each with the seconds that pass before it."""
    numbers = [signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    count = draw.randint(1, 4)
    return [(draw.uniform(0.01, 0.5) if n else 0.0, draw.choice(numbers)) for n in range(count)]


def send(pid: int, sequence: Sequence[tuple[float, int]]) -> list[int]:
    """Send them, as long as the process lives; those that were sent."""
    sent: list[int] = []
    for seconds, number in sequence:
        time.sleep(seconds)
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        os.kill(pid, number)
        sent.append(number)
    return sent


def saved_step(directory: Path) -> int:
    store = Store(directory / "checkpoints")
    name, _ = store.newest()
    return store.read(name).step if name else 0


def logged_step(directory: Path) -> int:
    if not (directory / "metrics.jsonl").exists():
        return 0
    records = read_metrics(directory / "metrics.jsonl")
    return max((record["step"] for record in records if "loss" in record), default=0)


def _saves_nothing() -> None:
    ErrorRecovery.rescue = lambda self, state, error: None  # type: ignore[method-assign]


def _forgets_generators() -> None:
    boundary.restore_random = lambda states, device: None  # type: ignore[assignment]


def _never_breaks_off() -> None:
    loop_module.TrainingLoop.may_break_off = property(lambda self: False)  # type: ignore[assignment]
    global COMPILE_SECONDS
    COMPILE_SECONDS = 2 * SLOW_SECONDS


def _breaks_off_the_last_save() -> None:
    loop_module.TrainingLoop.may_break_off = property(lambda self: True)  # type: ignore[assignment]


MUTANTS: dict[str, Callable[[], None]] = {
    "breaks_off_the_last_save": _breaks_off_the_last_save,
    "saves_nothing": _saves_nothing,
    "forgets_generators": _forgets_generators,
    "never_breaks_off": _never_breaks_off,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--stops", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS)
    arguments = parser.parse_args()
    if arguments.mutant:
        MUTANTS[arguments.mutant]()
    started = time.monotonic()
    outcome = storm(arguments.directory, arguments.stops, arguments.seed)
    seconds = round(time.monotonic() - started, 1)
    print_figures("G10", {**asdict(outcome), "seconds": seconds})


if __name__ == "__main__":
    main()
