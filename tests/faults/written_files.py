"""G15, second and third part: what a real run writes holds no pickle and no secret, and pickles
that somebody put beside a model or a checkpoint are never read.

The secrets stand in the environment, in arguments, in the configuration, in what a hook logs, in
the name of a metric and in the text of the error that the run dies of.
"""

import json
import os
import pickle
import random
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.faults.judge import ROOT
from tests.faults.pickle_scan import files_with_pickles

PLANTED_PICKLES = ("training_args.bin", "pytorch_model.bin", "optimizer.pt", "rng_state.pth")
PLANTED_PICKLES += ("adapter_model.bin", "model.pt", "data.pkl", "scheduler.pt")
STORE_FOLDERS = ("objects", "versions", "tmp")

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def secret(prefix: str) -> str:
    """One that nobody has."""
    draw = random.Random(prefix)
    return prefix + "".join(draw.choices(string.ascii_letters + string.digits, k=40)) + "A1b2"


SECRETS = {
    "environment": secret("hf_"),
    "environment, GitHub": secret("ghp_"),
    "argument": secret("sk-"),
    "YAML": secret("glpat-"),
    "URL in YAML": secret("Pw"),
    "spoken": secret("hf_x"),
}


class Exploit:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.mark,)


@dataclass
class Ran:
    """What was left of a run and of the attempt to go on with it."""

    directory: Path
    codes: list[int] = field(default_factory=list)
    output: bytes = b""

    def texts(self) -> Iterator[tuple[str, bytes]]:
        """Names and contents of everything that was written."""
        yield "what was printed", self.output
        for path in sorted(self.directory.rglob("*")):
            yield path.name, b"" if path.is_dir() else path.read_bytes()

    def leaks(self) -> list[str]:
        """Where a secret is found: which, and in what."""
        return [
            f"{name} in {place}"
            for place, text in self.texts()
            for name, hidden in SECRETS.items()
            if hidden.encode() in text or hidden in place
        ]


def write_rows(path: Path) -> None:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(10, 60)]
    path.write_text("\n".join(map(json.dumps, rows)))


def plant_pickles(directory: Path, mark: Path) -> None:
    for name in PLANTED_PICKLES:
        (directory / name).write_bytes(pickle.dumps(Exploit(mark)))


def run_with_secrets(folder: Path, model: Path, *flags: str, run: Run = subprocess.run) -> Ran:
    """Train until a hook fails, plant pickles everywhere, and go on until it fails again.

    Args:
        folder: where everything lies; the runs are in `folder/runs`.
        model: a small model.
        flags: `--careless` for the mutant, which needs processes that import everything anew.
        run: what runs a command.
    """
    write_rows(folder / "rows.jsonl")
    settings = {
        "training": {"max_steps": 6, "checkpoint_frequency": 2, "validation_frequency": 2},
        "data": {"num_workers": 0, "max_length": 64},
        "cache": {"directory": str(folder / "cache")},
        "output_dir": str(folder / "runs"),
        "device": "cpu",
    }
    (folder / "settings.yaml").write_text(json.dumps(settings))
    plant_pickles(model, folder / "mark")
    ran = Ran(folder / "runs")
    train = ["train", str(folder / "rows.jsonl"), f"--config={folder / 'settings.yaml'}"]
    _run(ran, run, *flags, *train, f"--model={model}", "--log-level=DEBUG")
    for directory in [path for path in (folder / "runs").iterdir() if path.is_dir()]:
        # not in the run's own folder: what lies there is carried in its checkpoints, as it is
        store = directory / "checkpoints"
        for place in (store, *(store / name for name in STORE_FOLDERS)):
            plant_pickles(place, folder / "mark")
    _run(ran, run, *flags, "resume", f"--output-dir={folder / 'runs'}", "--log-level=DEBUG")
    for name in PLANTED_PICKLES:
        for path in (folder / "runs").rglob(name):
            path.unlink()
    _run(ran, run, *flags, "train", f"--prompt-column=API_KEY={SECRETS['argument']}", *train[1:])
    url = f"https://me:{SECRETS['URL in YAML']}@files.example/rows.jsonl"
    for line in (f"data: {{path: '{url}'}}", f"training: {{optimizer: TOKEN={SECRETS['YAML']}}}"):
        (folder / "wrong.yaml").write_text(line)
        _run(ran, run, *flags, "train", f"--config={folder / 'wrong.yaml'}", "--log-level=DEBUG")
    return ran


def _run(ran: Ran, run: Run, *arguments: str) -> None:
    done = run(
        [sys.executable, "-m", "tests.faults.leaky_training", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_TOKEN": SECRETS["environment"],
            "GITHUB_TOKEN": SECRETS["environment, GitHub"],
            "SPOKEN_SECRET": SECRETS["spoken"],
        },
    )
    ran.codes.append(done.returncode)
    ran.output += done.stdout + done.stderr


def scanner_finds_pickles(directory: Path) -> bool:
    """The mutant of the scan: what torch.save writes, whole and inside something else."""
    torch.save({"weights": torch.ones(3)}, directory / "weights.pt")
    state = pickle.dumps({"step": 1, "loss": 0.5})
    (directory / "hidden").write_bytes(random.Random(0).randbytes(5000) + state + b"more")
    return len(files_with_pickles(directory)) == 2
