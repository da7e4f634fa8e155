"""What all that Temper does beside the training costs: everything on, and everything off.

    python -m benchmarks.everything_on --data gsm8k/train.jsonl [--rounds 3] [--write FILE]

The 12.7 M-parameter model of `benchmarks.throughput` trains on packed rows of GSM8K: once with
nothing but the loop, once as `temper train` runs it: monitor, alerts, metrics files, progress, a
version every 100 steps, its copy at a place, and the quantum step at the rhythm that it has by
default. They take turns, a whole training each, and who begins alternates. The time is from the
start of the training, before the quantum step decides, to the end of the last step: waiting for
copies and questions is in it; loading, measuring before and reporting after are not.

Takes about fifteen minutes. Prints a page, and fails where the median ratio is below 0.97.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import environment, publish, sentence, table
from benchmarks.throughput.systems import LEARNING_RATE, be_quiet
from benchmarks.throughput.workbench import SCENARIOS, Workbench, prepare
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory

CHECKPOINT_FREQUENCY = 100
NUM_STEPS = 4 * CHECKPOINT_FREQUENCY + 10  # enough for the quantum step to look at examples
LEAST = 0.97


@dataclass
class Span(Observer):
    """Tokens and seconds of a training."""

    begun: float = 0.0
    ended: float = 0.0
    num_tokens: int = 0

    def train_start(self, state: TrainingState) -> None:
        self.begun = time.perf_counter()

    def step_end(self, state: TrainingState) -> None:
        self.ended, self.num_tokens = time.perf_counter(), state.num_tokens

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / (self.ended - self.begun)


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


def everything_off(bench: Workbench, steps: int) -> float:
    """The loop alone."""
    span = Span()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TrainerFactory().for_run(configuration(bench, Path(folder), steps))
        trainer.add_hooks([span])
        trainer.train()
    return span.tokens_per_second


def everything_on(bench: Workbench, steps: int) -> float:
    """All of a run."""
    span = Span()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"
        place.mkdir()
        config = configuration(
            bench,
            Path(folder),
            steps,
            checkpoint_frequency=CHECKPOINT_FREQUENCY,
            enabled_extensions=["quantum"],
        )
        config = config.model_copy(
            update={"backup": config.backup.model_copy(update={"place": str(place)})}
        )
        TrainingDeployment(config, say=do_nothing, observers=[span]).run()
    return span.tokens_per_second


def ratios(speeds: dict[str, list[float]]) -> list[float]:
    """Of each round, everything on of everything off."""
    return [on / off for on, off in zip(speeds["on"], speeds["off"], strict=True)]


def page(speeds: dict[str, list[float]], num_steps: int) -> str:
    each_ratio = ratios(speeds)
    rows = [
        (number, *(f"{speeds[name][number - 1]:,.0f}" for name in ("off", "on")), f"{ratio:.3f}")
        for number, ratio in enumerate(each_ratio, start=1)
    ]
    return (
        "# Everything on beside everything off\n\n"
        f"`python -m benchmarks.everything_on`: trainings of {num_steps} steps, in turns."
        f" With everything on there are {median(each_ratio):.3f} times the tokens a second (at"
        f" least {LEAST}; the least of a round is {min(each_ratio):.3f})."
        f" {sentence(environment())}\n\n"
        f"{table(('round', 'tokens/s, all off', 'tokens/s, all on', 'ratio'), rows)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's train.jsonl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    be_quiet()
    kinds = {"off": everything_off, "on": everything_on}
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        bench = prepare(SCENARIOS["all"], arguments.data, arguments.steps, Path(folder))
        for turn in range(arguments.rounds):
            for name in list(kinds)[:: -1 if turn % 2 else 1]:
                speeds[name].append(kinds[name](bench, arguments.steps))
                print(f"{name}: {speeds[name][-1]:.0f} tokens/s", file=sys.stderr, flush=True)
    publish(page(speeds, arguments.steps), arguments.write)
    return int(median(ratios(speeds)) < LEAST)


if __name__ == "__main__":
    sys.exit(main())
