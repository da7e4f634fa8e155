"""Run all, the kernel killed at a random instant, Run all again: the same end, bit for bit.

    python -m tests.faults.notebook_kills [DIRECTORY] [--kills 20] [--seed 0] [--mutant NAME]

The notebook is 00_quickstart as it lies in the project. Its first cell really installs Temper, from
a repository beside it, into an environment that has everything but Temper. The instants are spread
over what a Run all does, stage by stage. At every second kill the machine is gone too, with all
that was on its disk, and only the place is left. Prints one JSON line. `lost`: a version was safe,
and the second Run all did not end with the run that it is of; `differing`: ends with other weights
or losses than the undisturbed one; `failed`: a Run all in which a cell failed; `missed`: stages in
which no kernel was killed, though each should have been.
"""

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from infrastructure.monitoring.drawing.metrics_file import read_metrics
from notebooks.build import REPOSITORY, VERSION
from tests.faults.judge import ROOT, print_figures
from tests.notebooks.kernels import CellError, RunningNotebook, notebook_in_kernel
from tests.notebooks.notebook_files import NOTEBOOKS, copy_into, variables

QUICKSTART = NOTEBOOKS[0]
TRAINING_CELL = 4
MAX_TRIES = 4
MAX_OCCURRENCE = 8  # of what comes again and again
KERNEL = "temper-quickstart"
HELPER_SECONDS = 60.0


@dataclass(frozen=True)
class Place:
    """Where one Run all works, and what a look at its files tells."""

    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def place(self) -> Path:
        return self.folder / "place"

    def has(self, pattern: str) -> bool:
        return next(self.folder.glob(pattern), None) is not None

    def run_with_a_version(self) -> str | None:
        """The run of which a version is safe, here or at the place."""
        found = [*self.runs.glob("*/checkpoints/versions/*"), *self.place.glob("*/versions/*")]
        names = {path.relative_to(self.folder).parts[1] for path in found}
        return max(names, default=None)


# What a Run all does, in this order; recognised by the cell and by the files that are there.
STAGES: dict[str, Callable[[int, Place], bool]] = {
    "installation": lambda cell, at: cell == 0,
    "settings": lambda cell, at: 0 < cell < TRAINING_CELL,
    "data": lambda cell, at: cell == TRAINING_CELL,
    "measuring": lambda cell, at: cell == TRAINING_CELL and at.has("runs/*/run.json"),
    "training": lambda cell, at: cell == TRAINING_CELL and at.has("runs/*/metrics.jsonl"),
    "saving": lambda cell, at: cell == TRAINING_CELL and at.has("runs/*/checkpoints/tmp/*"),
    "uploading": lambda cell, at: cell == TRAINING_CELL and at.has("place/**/*.part"),
    "evaluation": lambda cell, at: cell == TRAINING_CELL and at.has("runs/*/final/config.json"),
    "results": lambda cell, at: cell > TRAINING_CELL,
}
AGAIN_AND_AGAIN = ("saving", "uploading")


@dataclass
class Outcome:
    """Counts over a whole storm."""

    kills: int = 0
    by_stage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    machines: int = 0
    finished: int = 0
    lost: int = 0
    differing: int = 0
    failed: int = 0
    missed: int = 0


@dataclass(frozen=True)
class Death:
    """When a kernel dies: so long after the stage began for the n-th time; with its machine?"""

    stage: str
    occurrence: int
    delay_seconds: float
    takes_machine: bool


class Rehearsal:
    """An environment in which Temper is not installed, and trials in it, each in its folder."""

    def __init__(self, directory: Path, mutant: str | None) -> None:
        self.directory = directory
        self.repository = make_repository(directory / "temper.git")
        self.packages = make_environment(directory / "environment")
        self.mutant = {} if mutant is None else MUTANTS[mutant]

    def begin(self, name: str) -> Place:
        """A folder with the notebook; Temper is not installed."""
        for found in self.packages.glob("*"):
            if found.name in ("colab", "infrastructure") or found.name.startswith("temper"):
                shutil.rmtree(found)
        at = Place(self.directory / name)
        copy_into(at.folder, QUICKSTART)
        return at

    def run_all(self, at: Place, **more: str) -> dict[str, float]:
        """Run the notebook to its end; how long each stage took, in seconds.

        Raises:
            CellError: a cell failed.
        """
        seconds = dict.fromkeys(STAGES, 0.0)
        with self._kernel(at, **more) as notebook:
            before = time.monotonic()
            for cell in notebook.run_all():
                now = time.monotonic()
                seconds[stage_of(cell, at)] += now - before
                before = now
        return seconds

    def run_all_again(self, at: Place) -> None:
        """The same, as `run_all`; a mutant is at work here."""
        self.run_all(at, **self.mutant)

    def run_and_kill(self, at: Place, death: Death) -> str | None:
        """Run the notebook until `death`; in which stage it died, None: it came to its end.

        Raises:
            CellError: a cell failed before.
        """
        times, was_there, due = 0, False, float("inf")
        with self._kernel(at) as notebook:
            for cell in notebook.run_all():
                is_there = STAGES[death.stage](cell, at)
                times += is_there and not was_there
                was_there = is_there
                if times == death.occurrence:
                    due = min(due, time.monotonic() + death.delay_seconds)
                if time.monotonic() >= due:
                    stage = stage_of(cell, at)
                    notebook.kill()
                    return stage
        return None

    @contextlib.contextmanager
    def _kernel(self, at: Place, **more: str) -> Iterator[RunningNotebook]:
        environment = {**self._variables(at), **more}
        path = at.folder / QUICKSTART.name
        with notebook_in_kernel(path, environment, KERNEL) as notebook:
            yield notebook

    def _variables(self, at: Place) -> dict[str, str]:
        ours = variables(
            self.directory,
            OUTPUT_DIR=str(at.runs),
            TEMPER_BACKUP__PLACE=str(at.place),
            TEMPER_TRAINING__MAX_STEPS="40",
            GIT_CONFIG_COUNT="1",
            GIT_CONFIG_KEY_0=f"url.{self.repository}.insteadOf",
            GIT_CONFIG_VALUE_0=REPOSITORY,
            PIP_NO_BUILD_ISOLATION="0",  # pip reads it as: isolation 0
        )
        return {**ours, "PYTHONPATH": ""}


def make_repository(path: Path) -> Path:
    """The working tree as it is now, committed to a repository of its own, as its version."""
    names = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name)
    git(path, "init", "--quiet", "--initial-branch", "main")
    git(path, "add", "--all")
    author = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    git(path, *author, "commit", "--quiet", "--message", "As it is now")
    git(path, "tag", f"v{VERSION}")
    return path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def make_environment(folder: Path) -> Path:
    """An environment with the packages of this one, all but Temper, and a kernel named KERNEL.

    Returns:
        Where it keeps its packages.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in Path(sysconfig.get_path("purelib")).iterdir():
        if "temper" not in found.name and found.suffix != ".pth" and found.name != "__pycache__":
            (packages / found.name).symlink_to(found)
    command = [str(folder / "bin" / "python"), "-m", "ipykernel", "install", "--sys-prefix"]
    subprocess.run([*command, "--name", KERNEL], check=True, stdout=subprocess.DEVNULL)
    os.environ["JUPYTER_PATH"] = str(folder / "share" / "jupyter")
    return packages


def stage_of(cell: int, at: Place) -> str:
    """The latest stage whose signs are there."""
    return [name for name, is_there in STAGES.items() if is_there(cell, at)][-1]


def result_of(at: Place) -> tuple[str, list[tuple[int, float]]]:
    """The weights' hash and the losses of the newest run."""
    final = max(at.runs.glob("*/final"))
    weights = hashlib.sha256((final / "model.safetensors").read_bytes()).hexdigest()
    records = read_metrics(final.parent / "metrics.jsonl")
    return weights, [(record["step"], record["loss"]) for record in records if "loss" in record]


def storm(directory: Path, num_kills: int, seed: int, mutant: str | None) -> Outcome:
    """Kill `num_kills` kernels, stage by stage, and run all again after each."""
    rehearsal, draw, outcome = Rehearsal(directory, mutant), random.Random(seed), Outcome()
    reference = rehearsal.begin("reference")
    lengths = rehearsal.run_all(reference)
    print({name: round(seconds, 2) for name, seconds in lengths.items()}, file=sys.stderr)
    stages = draw.sample(list(STAGES), len(STAGES))
    wanted = [stages[number % len(stages)] for number in range(num_kills)]
    for number, stage in enumerate(with_missed_ones(wanted, outcome)):
        at = kill_in(rehearsal, stage, lengths[stage], number, draw, outcome)
        if at is not None:
            go_on(rehearsal, at, reference, outcome)
            shutil.rmtree(at.folder)
        print(f"{number + 1} of {num_kills}, {stage}: {outcome}", file=sys.stderr, flush=True)
    outcome.missed = sum(not outcome.by_stage[stage] for stage in set(wanted))
    return outcome


def with_missed_ones(wanted: list[str], outcome: Outcome) -> Iterator[str]:
    """The stages in turn, and again those in which nobody died: a Run all may be quicker than the
    one that was timed, and its kernel then dies in a later stage."""
    yield from wanted
    for stage in sorted(set(wanted)):
        for _ in range(MAX_TRIES):
            if not outcome.by_stage[stage]:
                yield stage


def kill_in(
    rehearsal: Rehearsal,
    stage: str,
    length_seconds: float,
    number: int,
    draw: random.Random,
    outcome: Outcome,
) -> Place | None:
    """What a kernel left that was killed in `stage`; None: it failed, or was always too fast."""
    for attempt in range(MAX_TRIES):
        if stage in AGAIN_AND_AGAIN:
            occurrence, delay_seconds = draw.randint(1, MAX_OCCURRENCE), 0.0
        else:
            occurrence, delay_seconds = 1, draw.uniform(0, length_seconds)
        death = Death(stage, occurrence, delay_seconds, takes_machine=number % 2 == 1)
        at = rehearsal.begin(f"disturbed-{number}-{attempt}")
        try:
            found = rehearsal.run_and_kill(at, death)
        except CellError as error:
            return failed(error, outcome)
        if found is not None:
            outcome.kills += 1
            outcome.by_stage[found] += 1
            if death.takes_machine:
                outcome.machines += 1
                wait_for_helpers(at)
                shutil.rmtree(at.runs, ignore_errors=True)
            return at
    return None


def go_on(rehearsal: Rehearsal, at: Place, reference: Place, outcome: Outcome) -> None:
    """Run all again, and compare its end with that of the undisturbed one."""
    safe = at.run_with_a_version()
    try:
        rehearsal.run_all_again(at)
    except CellError as error:
        failed(error, outcome)
        return
    outcome.finished += 1
    ended = max(at.runs.glob("*/final")).parent.name
    outcome.lost += safe is not None and ended != safe
    outcome.differing += result_of(at) != result_of(reference)


def failed(error: CellError, outcome: Outcome) -> None:
    outcome.failed += 1
    print(error, file=sys.stderr)


def wait_for_helpers(at: Place) -> None:
    """A dead machine's helpers are dead too; here they end when they see that they are alone."""
    deadline = time.monotonic() + HELPER_SECONDS
    while time.monotonic() < deadline and any(map(uses(at), psutil.process_iter(["cmdline"]))):
        time.sleep(0.1)


def uses(at: Place) -> Callable[[psutil.Process], bool]:
    """Whether a process was started for what lies in a folder."""
    return lambda process: str(at.folder) in " ".join(process.info["cmdline"] or [])


# Defects that must show: each is a setting that only the second Run all has.
MUTANTS: dict[str, dict[str, str]] = {
    "begins_anew": {"TEMPER_NEW_RUN": "true"},
    "other_data_order": {"TEMPER_TRAINING__SEED": "1"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?", help="default: one that is removed")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        directory = arguments.directory or Path(temporary)
        outcome = storm(directory, arguments.kills, arguments.seed, arguments.mutant)
    seconds = round(time.monotonic() - started, 1)
    print_figures("notebooks", {**asdict(outcome), "seconds": seconds})


if __name__ == "__main__":
    main()
