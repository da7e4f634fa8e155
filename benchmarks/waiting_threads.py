"""What a training step costs by how long a thread that waits for others spins before it sleeps.

    python -m benchmarks.waiting_threads [--seconds 10] [--rounds 3] [--write FILE]

Steps of the quickstart's model on sample tasks, in fp32, alone and beside a program that keeps one
core busy; each with some lengths of spinning, with PyTorch's own waiting, and with one thread,
which waits for nobody. Each in a process of its own, in turns. Prints a page.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.machine import environment, publish, sentence, table
from infrastructure.core.shared_cores import SPINS_BEFORE_SLEEP, THREADS_VARIABLE

SPINS = (0, 1000, SPINS_BEFORE_SLEEP, 20_000, 100_000)
BUSY = "while True: pass"
REPLACED = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", THREADS_VARIABLE}
ROOT = Path(__file__).resolve().parents[1]


def variants() -> dict[str, dict[str, str]]:
    """What the environment of each says."""
    spinning = {
        f"{spins:,} spins, then sleep": {
            "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": str(spins),
        }
        for spins in SPINS
    }
    return {**spinning, "as PyTorch waits": {}, "one thread": {THREADS_VARIABLE: "1"}}


def step_milliseconds(seconds: float) -> float:
    """Of a usual micro-batch of the quickstart, forward and backward, in this process; median."""
    from benchmarks.throughput.systems import be_quiet
    from infrastructure.config.deployment_config import DeploymentConfig
    from infrastructure.data.defaults import make_ready
    from infrastructure.training.enhanced_trainer import EnhancedTrainer

    be_quiet()
    config = DeploymentConfig(device="cpu", training={"mixed_precision": "fp32"})
    make_ready(config)
    trainer = EnhancedTrainer(config.model, config.training, config.data, device="cpu")
    size, fit = trainer.batch_plan().micro_batch_size, trainer.cost_measurement()
    taken = []
    with fit.strategy.measuring(fit.model), fit.probing(accumulates=False) as probe:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            taken.append(probe.micro_batch(fit.usual[:size]).seconds)
    return 1000 * median(taken[len(taken) // 4 :])


def measured(variables: dict[str, str], seconds: float) -> float:
    """`step_milliseconds` in a process with these variables."""
    others = {key: value for key, value in os.environ.items() if key not in REPLACED}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.waiting_threads", "--one", str(seconds)],
            cwd=folder,
            env={**others, **variables, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return float(json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def a_busy_program() -> Iterator[subprocess.Popen[bytes]]:
    """Inside, another process computes all the time."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def page(alone: dict[str, list[float]], beside: dict[str, list[float]], rounds: int) -> str:
    rows = [
        (name, f"{median(alone[name]):.0f} ms", f"{median(beside[name]):.0f} ms") for name in alone
    ]
    return (
        "# What waiting threads cost a training\n\n"
        f"`python -m benchmarks.waiting_threads`: forward and backward pass of the quickstart in"
        f" fp32, median of {rounds} rounds in turns. A run that is worth it measures one thread and"
        f" all of them itself. {sentence(environment())}\n\n"
        f"{table(('a waiting thread', 'alone', 'beside a busy program'), rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of steps, each time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)  # in a process of its own
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(step_milliseconds(arguments.one)))
        return
    alone: dict[str, list[float]] = {name: [] for name in variants()}
    beside: dict[str, list[float]] = {name: [] for name in variants()}
    for _ in range(arguments.rounds):
        for name, variables in variants().items():
            alone[name].append(measured(variables, arguments.seconds))
        with a_busy_program():
            for name, variables in variants().items():
                beside[name].append(measured(variables, arguments.seconds))
    publish(page(alone, beside, arguments.rounds), arguments.write)


if __name__ == "__main__":
    main()
