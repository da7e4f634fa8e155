"""What all that Temper does beside the training costs: everything on, and everything off.

    python -m benchmarks.everything_on --data gsm8k/train.jsonl [--rounds 3] [--steps 210]

The 12.7 M-parameter model of `benchmarks.throughput` trains on packed rows of GSM8K: once with
nothing but the loop, once as `temper train` runs it: monitor, alerts, metrics files, progress, a
version every 100 steps, its copy at a place, and the quantum step at the rhythm that it has by
default. They take turns, a whole training each, and who begins alternates. The time is from the
start of step 11 to the end of the last step: what all that takes within the training, waiting for
copies and questions included; loading, measuring before and reporting after are not in it.

Prints one JSON line: tokens per second of each round, the median ratio, and the least one.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import environment
from benchmarks.throughput.__main__ import be_quiet
from benchmarks.throughput.systems import LEARNING_RATE
from benchmarks.throughput.workbench import SCENARIOS, Workbench, prepare
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory

WARMUP_STEPS = 10  # kernels are made for new lengths
CHECKPOINT_FREQUENCY = 100
LEAST = 0.97


@dataclass
class Span(Observer):
    """Tokens and seconds after the warm-up."""

    begun: float = 0.0
    ended: float = 0.0
    tokens: list[int] = field(default_factory=list)

    def step_end(self, state: TrainingState) -> None:
        self.ended = time.perf_counter()
        if state.step == WARMUP_STEPS:
            self.begun = self.ended
        if state.step >= WARMUP_STEPS:
            self.tokens.append(state.num_tokens)

    @property
    def tokens_per_second(self) -> float:
        return (self.tokens[-1] - self.tokens[0]) / (self.ended - self.begun)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's train.jsonl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=WARMUP_STEPS + 200)
    arguments = parser.parse_args()
    be_quiet()
    kinds = {"off": everything_off, "on": everything_on}
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        bench = prepare(SCENARIOS["all"], arguments.data, arguments.steps, Path(folder))
        for turn in range(arguments.rounds):
            for name in list(kinds)[:: -1 if turn % 2 else 1]:
                speeds[name].append(kinds[name](bench, arguments.steps))
    ratios = [on / off for on, off in zip(speeds["on"], speeds["off"], strict=True)]
    figures = {
        "tokens_per_second": {name: [round(s) for s in each] for name, each in speeds.items()},
        "ratio": round(median(ratios), 3),
        "least_ratio": round(min(ratios), 3),
        "missed": int(median(ratios) < LEAST),
    }
    print(json.dumps({"everything on": {**figures, "environment": environment()}}))


if __name__ == "__main__":
    main()
