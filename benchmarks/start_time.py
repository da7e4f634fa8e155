"""From the command to the first step, beside importing what a Llama needs.

    python -m benchmarks.start_time [--rounds 5] [--write FILE]

`temper train` with nothing else said: sample tasks and the embedded model, in a folder and with a
cache of its own each time, until its first step is in the metrics; then it is stopped. In turns
with it a Python that imports torch and transformers' Llama, and nothing more. A first round does
not count: the files come from the disk, and bytecode is written. Prints a page, and fails where the
median start takes more than 6 seconds, or more than twice as long as those imports beside it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.machine import environment, publish, sentence, table
from infrastructure.monitoring.drawing.metrics_file import read_metrics

MOST_SECONDS, MOST_RATIO = 6.0, 2.0
LOOK_SECONDS = 0.05  # who looks all the time takes the time that is measured
LONGEST_SECONDS = 300.0
IMPORTS = "import torch; from transformers import LlamaConfig, LlamaForCausalLM; print('there')"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Starts:
    """Seconds of each round: until the first step, and of the imports beside it."""

    first_step: list[float]
    imports: list[float]

    @property
    def ratio(self) -> float:
        """The median over rounds."""
        return median(step / alone for step, alone in zip(*self.columns, strict=True))

    @property
    def columns(self) -> tuple[list[float], list[float]]:
        return self.first_step, self.imports

    @property
    def is_fast(self) -> bool:
        return median(self.first_step) <= MOST_SECONDS and self.ratio <= MOST_RATIO


def first_step_seconds(folder: Path) -> float:
    """Of `temper train` in a folder of its own; nothing of it is left running.

    Raises:
        RuntimeError: it ended without a step, or takes too long; with its last lines.
    """
    output = folder / "output.txt"
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TEMPER_CACHE__DIRECTORY": str(folder / "cache"),
    }
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # `make` and `launch_training.sh` do so, too
    began = time.perf_counter()
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "temper", "train"],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        while not has_stepped(folder / "runs"):
            seconds = time.perf_counter() - began
            if process.poll() is not None or seconds > LONGEST_SECONDS:
                last_lines = "\n".join(output.read_text().splitlines()[-5:])
                raise RuntimeError(f"no step after {seconds:.0f} s:\n{last_lines}")
            time.sleep(LOOK_SECONDS)
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.wait()


def has_stepped(runs: Path) -> bool:
    """Whether a run's metrics have a step's loss."""
    files = runs.glob("*/metrics.jsonl")
    return any("loss" in record for path in files for record in read_metrics(path))


def import_seconds() -> float:
    """Until a Python has imported what a Llama needs."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
    if line.strip() != "there":
        raise RuntimeError(f"the imports ended with {process.returncode}")
    return seconds


def measure(folder: Path, rounds: int) -> Starts:
    """In turns; who begins alternates, and the first round is left out."""
    starts = Starts([], [])
    for number in range(rounds + 1):
        own = folder / str(number)
        own.mkdir()
        turn: Sequence[tuple[list[float], Callable[[], float]]] = (
            (starts.first_step, partial(first_step_seconds, own)),
            (starts.imports, import_seconds),
        )
        for seconds, measured in turn[:: -1 if number % 2 else 1]:
            seconds.append(measured())
    for seconds in starts.columns:
        del seconds[0]
    return starts


def page(starts: Starts) -> str:
    names = ("until the first step of `temper train`", "importing torch and a Llama")
    rows = [
        (name, f"{median(each):.1f} s", ", ".join(f"{seconds:.1f}" for seconds in each))
        for name, each in zip(names, starts.columns, strict=True)
    ]
    return (
        "# From the command to the first step\n\n"
        "`python -m benchmarks.start_time`: sample tasks and the embedded model, nothing prepared"
        f" before; {len(starts.imports)} rounds in turns. The first step takes {starts.ratio:.2f}"
        f" times as long as the imports (at most {MOST_RATIO}, and at most {MOST_SECONDS} s)."
        f" {sentence(environment())}\n\n{table(('', 'median', 'each round, s'), rows)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        starts = measure(Path(folder), arguments.rounds)
    publish(page(starts), arguments.write)
    return 0 if starts.is_fast else 1


if __name__ == "__main__":
    sys.exit(main())
