"""What all that Temper does beside the training costs: everything on, and everything off.

    python -m benchmarks.everything_on --data gsm8k/train.jsonl [--steps 500] [--pairs 3]
        [--write FILE]

The 12.7 M-parameter model of `benchmarks.throughput` trains on packed rows of GSM8K: once with
nothing but the loop, once as `temper train` runs it: monitor, alerts, metrics files, progress, a
version every 100 steps, its copy at a place, and the quantum step at the rhythm that it has by
default. Both train at once and take turns of two steps; meanwhile the other is stopped, with the
processes that it has started. So a machine that is slower now than a minute ago is so for both, and
what is written and copied beside a training takes nothing from the other. The clock goes on
meanwhile: the monitor waits twice as long between two looks, and whatever else is done every few
seconds is done up to twice as often as it would be. There are three such pairs, one after the
other, so that what one process happens to be given weighs less. The time is from the start of the
training, before the quantum step decides, to the end of the last step: waiting for copies and
questions is in it; loading, measuring before and reporting after are not. In 500 steps there are as
many versions as hundreds: that of step 0 is one, and that of the last step comes after the time.
Everything off measures the same before it trains, which makes kernels that the first steps need,
and computes in the same dtype, with as many threads.

Takes twenty minutes or more. Prints a page, and fails where the ratio is below 0.97.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.machine import environment, publish, sentence, table
from benchmarks.throughput.systems import LEARNING_RATE, be_quiet
from benchmarks.throughput.workbench import SCENARIOS, Workbench, prepare
from benchmarks.turns import PAUSE_SECONDS, interval
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.forecast import costs_of
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.setup.compute_choice import choose_by_product, choose_by_trial
from infrastructure.training.trainer_factory import TrainerFactory

CHECKPOINT_FREQUENCY = 100
NUM_STEPS = 5 * CHECKPOINT_FREQUENCY  # enough for the quantum step to look at examples
TURN_STEPS = 2
NUM_PAIRS = 3
LEAST = 0.97
KINDS = OFF, ON = "off", "on"


@dataclass(frozen=True)
class Turn:
    """What a training has done while it was its turn."""

    num_tokens: int
    seconds: float


class Marks(Observer):
    """A training's side: a line where it begins and after each step, with the tokens until then."""

    def __init__(self, lines: IO[str]) -> None:
        self.lines = lines

    def train_start(self, state: TrainingState) -> None:
        print(0, 0, file=self.lines, flush=True)

    def step_end(self, state: TrainingState) -> None:
        print(state.step, state.num_tokens, file=self.lines, flush=True)


class Training:
    """A process that goes on only while it is its turn, with all that it has started.

    Args:
        command: prints a line after each step: its number, and the tokens until then.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._tree = psutil.Process(self._process.pid)
        self._stopped = {self._tree}
        self._num_tokens = 0

    def go(self, last_step: int) -> Turn:
        """Let it go on until `last_step` is done.

        Raises:
            RuntimeError: it has ended before.
        """
        assert self._process.stdout is not None
        started = time.perf_counter()
        self._continue()
        for line in self._process.stdout:
            step, num_tokens = map(int, line.split())
            if step >= last_step:
                seconds = time.perf_counter() - started
                self._stop()
                turn = Turn(num_tokens - self._num_tokens, seconds)
                self._num_tokens = num_tokens
                return turn
        raise RuntimeError(f"the training has ended before step {last_step}")

    def end(self) -> None:
        self._stop()
        _send(signal.SIGKILL, self._stopped)
        with self._process:  # closes its pipe, and waits
            pass

    def _continue(self) -> None:
        """Those that were stopped; whoever looked for them now would take a processor from them."""
        _send(signal.SIGCONT, self._stopped)

    def _stop(self) -> None:
        """The process, and then all that it has started."""
        self._stopped = set()
        missing = {self._tree}
        while missing:
            _send(signal.SIGSTOP, missing)
            self._stopped |= missing
            missing = {*self._started()} - self._stopped
        for process in self._stopped:
            _wait_until_stopped(process)

    def _started(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return self._tree.children(recursive=True)
        return []


def _send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _wait_until_stopped(process: psutil.Process) -> None:
    """Wait until the signal has arrived: a process that computes sees it at its next interrupt."""
    with suppress(psutil.NoSuchProcess):
        while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(0.001)


def configuration(bench: Workbench, folder: Path, steps: int, **training: Any) -> DeploymentConfig:
    return DeploymentConfig(
        model_name=str(bench.model_folder),
        data=bench.data_config.model_dump(),
        training={
            "max_steps": steps,
            "batch_size": bench.scenario.batch_size,
            "learning_rate": LEARNING_RATE,
            **training,
        },
        cache=bench.cache.model_dump(),
        output_dir=str(folder / "runs"),
        device="cpu",
    )


def everything_off(bench: Workbench, folder: Path, steps: int, marks: Marks) -> None:
    """The loop alone, after the measurements that everything on begins with."""
    trainer = TrainerFactory().for_run(configuration(bench, folder, steps))
    trainer.add_hooks([marks])
    choose_by_product(trainer)
    trainer.initialize_model()
    choose_by_trial(trainer)
    costs_of(trainer)
    trainer.train()


def everything_on(bench: Workbench, folder: Path, steps: int, marks: Marks) -> None:
    """All of a run, which is stopped while the other one goes on."""
    place = folder / "place"
    place.mkdir()
    config = configuration(
        bench,
        folder,
        steps,
        checkpoint_frequency=CHECKPOINT_FREQUENCY,
        checkpoint_seconds=None,  # the clock goes on while it is stopped
        enabled_extensions=["quantum"],
    )
    config.backup = config.backup.copy_with(place=str(place))
    interval_seconds = len(KINDS) * config.monitor.interval
    config.monitor = config.monitor.copy_with(interval=interval_seconds)
    TrainingDeployment(config, say=do_nothing, observers=[marks]).run()


def train(kind: str, folder: Path, steps: int) -> None:
    """The program of one of the processes."""
    with os.fdopen(os.dup(1), "w") as lines, tempfile.TemporaryDirectory() as runs:
        os.dup2(2, 1)  # whatever else is printed
        be_quiet()
        bench, marks = Workbench(SCENARIOS["all"], folder), Marks(lines)
        if kind == ON:
            everything_on(bench, Path(runs), steps, marks)
        else:
            everything_off(bench, Path(runs), steps, marks)


def train_pair(command: Sequence[str], num_steps: int) -> dict[str, list[Turn]]:
    """Two trainings in turn; who begins alternates. Prints their speeds on stderr.

    Returns:
        Of each kind its turns.
    """
    trainings: dict[str, Training] = {}
    turns: dict[str, list[Turn]] = {kind: [] for kind in KINDS}
    try:
        for kind in KINDS:  # one after the other: the start is measured, too
            trainings[kind] = Training([*command, kind])
            trainings[kind].go(0)
        for last in range(TURN_STEPS, num_steps + 1, TURN_STEPS):
            for kind in KINDS[:: -1 if last // TURN_STEPS % 2 else 1]:
                time.sleep(PAUSE_SECONDS)
                turns[kind].append(trainings[kind].go(last))
            if last % CHECKPOINT_FREQUENCY == 0:
                speeds = (f"{kind} {speed_of(turns[kind]):.0f}" for kind in KINDS)
                print(f"step {last}: {', '.join(speeds)} tokens/s", file=sys.stderr, flush=True)
    finally:
        for training in trainings.values():
            training.end()
    return turns


def speed_of(turns: Sequence[Turn]) -> float:
    """Tokens per second."""
    return sum(turn.num_tokens for turn in turns) / sum(turn.seconds for turn in turns)


def ratio_of(pairs: Sequence[tuple[Turn, Turn]]) -> float:
    """Everything on of everything off."""
    off, on = zip(*pairs, strict=True)
    return speed_of(on) / speed_of(off)


def page(pairs: Sequence[Sequence[tuple[Turn, Turn]]]) -> tuple[str, float]:
    """The page, and how many times the tokens a second everything on has.

    Args:
        pairs: of trainings; of each the turns of both.
    """
    all_turns = [turn for pair in pairs for turn in pair]
    ratio, (low, high) = ratio_of(all_turns), interval(all_turns, ratio_of)
    size = CHECKPOINT_FREQUENCY // TURN_STEPS
    rows = []
    for first in range(0, len(pairs[0]), size):
        span = [turn for pair in pairs for turn in pair[first : first + size]]
        last = min(first + size, len(pairs[0]))
        off, on = (speed_of(each) for each in zip(*span, strict=True))
        steps = f"{TURN_STEPS * first + 1} to {TURN_STEPS * last}"
        rows.append((steps, f"{off:,.0f}", f"{on:,.0f}", f"{on / off:.3f}"))
    each = ", ".join(f"{ratio_of(pair):.3f}" for pair in pairs)
    text = (
        "# Everything on beside everything off\n\n"
        f"`python -m benchmarks.everything_on`: {len(pairs)} pairs of trainings of"
        f" {TURN_STEPS * len(pairs[0])} steps, one of each with everything on, which take turns of"
        f" {TURN_STEPS} steps. With everything on there are {ratio:.3f} times the tokens a second"
        f" (at least {LEAST}; 95% interval {low:.3f} to {high:.3f}; by pairs {each})."
        f" {sentence(environment())}\n\n"
        f"{table(('steps', 'tokens/s, all off', 'tokens/s, all on', 'ratio'), rows)}"
    )
    return text, ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's train.jsonl")
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS, help="of trainings")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    parser.add_argument("--train", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        folder, kind = arguments.train
        train(kind, Path(folder), arguments.steps)
        return 0
    be_quiet()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or the trainings would stay stopped
    with tempfile.TemporaryDirectory() as folder:
        prepare(SCENARIOS["all"], arguments.data, arguments.steps, Path(folder))
        program = [sys.executable, "-m", "benchmarks.everything_on"]
        command = [*program, *sys.argv[1:], "--train", folder]
        pairs = []
        for _ in range(arguments.pairs):
            turns = train_pair(command, arguments.steps)
            pairs.append([*zip(turns[OFF], turns[ON], strict=True)])
    text, ratio = page(pairs)
    publish(text, arguments.write)
    return int(ratio < LEAST)


if __name__ == "__main__":
    sys.exit(main())
