"""What all proofs have in common: how they print their figures, and what must not be in them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.forks import main_in_fork

ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, Any]

# Counts that must be zero, whatever the proof.
BAD = ("lost", "damaged", "differing", "failed", "next_save_failed", "silent", "believed")
BAD += ("leaks", "pickles", "code_run", "written_outside", "other_errors", "hungry", "both_wrote")
BAD += ("missed", "unsaved", "slow", "unsynced", "dead_ends", "below")


def run_module(name: str, *arguments: str) -> Figures:
    """The figures that `python -m name` prints as one JSON line, without their label.

    Raises:
        CalledProcessError: it failed; what it said is on standard error.
    """
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    return _figures_in(done.stdout)


def run_in_fork(name: str, *arguments: str) -> Figures:
    """As `run_module`, in a fork of this process: what it imports is there already.

    Raises:
        CalledProcessError: it failed; what it said is on standard error.
    """
    return _figures_in(main_in_fork(name, *arguments, cwd=ROOT))


def _figures_in(output: str) -> Figures:
    ((_, figures),) = json.loads(output.splitlines()[-1]).items()
    return dict(figures)


def complaints(label: str, figures: Mapping[str, Any]) -> list[str]:
    """What is wrong with the figures of a proof; nothing, where it holds."""
    found = [f"{label}: {name} = {figures[name]}" for name in BAD if figures.get(name)]
    if figures.get("mutants", 0) != figures.get("mutants_caught", 0):
        found.append(f"{label}: a mutant was not caught")
    return found


def print_figures(label: str, figures: Mapping[str, Any]) -> None:
    """Print the one JSON line of a proof."""
    print(json.dumps({label: figures}))
