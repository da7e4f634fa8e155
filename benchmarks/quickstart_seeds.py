"""Does the quickstart learn its tasks whatever the seed, and how long does it take?

    python -m benchmarks.quickstart_seeds [--seeds 0 1 2 3 4] [--write FILE]

`temper train` with nothing said but the seed, as a person starts it: sample tasks, the embedded
model, all measuring, saving and reporting; each in a folder and with a cache of its own, one after
the other. Exact match is the share of held-out questions that are answered exactly. Prints a page,
and fails where it is less than 95% for one of the seeds, or where one took more than 90 seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.machine import environment, publish, sentence, table

LEAST_EXACT_MATCH, MOST_SECONDS = 0.95, 90.0
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Quickstart:
    """One of them.

    Attributes:
        exact_match: after the training, over all held-out questions that were asked.
        loss: after the training, of all held-out rows.
        seconds: from the command until it has ended.
    """

    seed: int
    exact_match: float
    loss: float
    seconds: float


def train(seed: int, folder: Path, settings: Sequence[str] = ()) -> Quickstart:
    """The quickstart as a command, with further `settings`.

    Raises:
        RuntimeError: it failed; with its last lines.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TEMPER_CACHE__DIRECTORY": str(folder / "cache"),
    }
    command = [sys.executable, "-m", "temper", "train", "--seed", str(seed), *settings]
    began = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        last_lines = "\n".join(done.stdout.splitlines()[-5:])
        raise RuntimeError(f"seed {seed} ended with {done.returncode}:\n{last_lines}")
    [path] = (folder / "runs").glob("*/summary.json")
    after = json.loads(path.read_text())["after"]
    return Quickstart(seed, after["exact_match"]["all"], after["eval_loss"], seconds)


def has_missed(trainings: Sequence[Quickstart]) -> bool:
    least = min(each.exact_match for each in trainings)
    return least < LEAST_EXACT_MATCH or max(each.seconds for each in trainings) > MOST_SECONDS


def page(trainings: Sequence[Quickstart]) -> str:
    rows = [
        (each.seed, f"{each.exact_match:.1%}", f"{each.loss:.4f}", f"{each.seconds:.0f} s")
        for each in trainings
    ]
    exact_match = fmean(each.exact_match for each in trainings)
    longest = max(each.seconds for each in trainings)
    return (
        "# The quickstart over some seeds\n\n"
        f"`python -m benchmarks.quickstart_seeds`: {exact_match:.1%} of the held-out questions are"
        f" answered exactly after the training, over {len(trainings)} seeds (each at least"
        f" {LEAST_EXACT_MATCH:.0%}); the longest took {longest:.0f} s from the command to its end"
        f" (at most {MOST_SECONDS:.0f} s)."
        f" {sentence(environment())}\n\n"
        f"{table(('seed', 'exact match', 'held-out loss', 'whole command'), rows)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    trainings = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            trainings.append(train(seed, Path(folder)))
        print(f"seed {seed}: {trainings[-1]}", file=sys.stderr, flush=True)
    publish(page(trainings), arguments.write)
    return int(has_missed(trainings))


if __name__ == "__main__":
    sys.exit(main())
