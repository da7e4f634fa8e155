"""The examples are short and run as they stand, in a folder of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.scripts import MOST_LINES, ROOT, run_example
from tests.forks import outcome_of_forked
from tests.slow import slow

EXAMPLES = ROOT / "examples"
FIRST_MODEL = {"TEMPER_PRESET": "ci"}  # smaller than what the example trains for a person


@pytest.mark.parametrize("name", ["own_data", "kill_and_go_on", "own_trainer"])
def test_it_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= MOST_LINES


def run(name: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **FIRST_MODEL}
    return outcome_of_forked(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        text=True,
    )


def test_rows_of_ones_own_are_trained_on_and_measured(tmp_path: Path) -> None:
    done = run("own_data", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained to runs/" in done.stdout
    assert "loss " in done.stdout.splitlines()[-1]
    assert "trained on rows of" not in done.stdout + done.stderr  # it measures others


@slow
def test_a_killed_training_goes_on(tmp_path: Path) -> None:
    # no fork: it starts a process of its own by its file
    done = run_example("kill_and_go_on", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "killed; what is saved:" in done.stdout
    assert "finished at step 12" in done.stdout
    assert len([*(tmp_path / "runs").glob("*/run.json")]) == 1


@slow
@pytest.mark.timeout(600)
def test_trainers_of_trl_are_kept_and_do_nothing_once_they_are_finished(
    saved_llama: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        done = run("own_trainer", tmp_path, str(saved_llama))
        assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("trainer.run_already_finished") == 2
    for name in ("sft", "dpo"):
        assert (tmp_path / "runs" / name / "final/model.safetensors").is_file()
