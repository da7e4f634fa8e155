"""Another process gives the answer that this one would, whatever script has started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from infrastructure.core.errors import SamplerError
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.block_selection import BlockSelection
from infrastructure.features.quantum.problems.data_selection import DataSelection
from infrastructure.features.quantum.problems.problem import QuantumProblem
from infrastructure.features.quantum.problems.rank_allocation import RankAllocation
from infrastructure.features.quantum.solving.quantum_step import quantum_solve
from infrastructure.features.quantum.training.async_solve import AsyncSolve
from tests.features.quantum.training.bad_samplers import Unanswerable

ROOT = Path(__file__).resolve().parents[3]
BAD = "tests.features.quantum.training.bad_samplers"
PATIENCE_SECONDS = 60.0


def problem_of(kind: str) -> QuantumProblem:
    rng = np.random.RandomState(3)
    if kind == "data_selection":
        return DataSelection(range(40), rng.randn(40, 8).astype(np.float32), 15)
    spread = rng.randn(6, 6)
    pairs = (spread @ spread.T).astype(np.float32)
    if kind == "block_selection":
        names = [f"block {number}" for number in range(6)]
        return BlockSelection(names, -np.arange(6.0), pairs, 2, gradient_norms=np.arange(6.0))
    return RankAllocation({"a": 4, "b": 2}, rng.randn(6), pairs, 3)


def waited_for(background: AsyncSolve) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not background.is_done:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("kind", "solver"),
    [
        ("data_selection", "auto"),  # the dense annealer
        ("data_selection", "simulated_annealing"),  # in a process of its own
        ("block_selection", "auto"),
        ("rank_allocation", "auto"),
    ],
)
def test_the_answer_is_that_of_the_foreground(kind: str, solver: str) -> None:
    resources = QuantumConfig(solver=solver, timeout=PATIENCE_SECONDS)
    background = AsyncSolve(problem_of(kind), resources, seed=5)
    here = quantum_solve(problem_of(kind), resources, seed=5)
    waited_for(background)
    there = background.result()
    assert not here.info["bound_hit"]
    for name in ("decision", "sample", "energy", "answered_by", "is_fallback", "alternatives"):
        assert getattr(there, name) == getattr(here, name), name


SCRIPT = """
print("the script runs")
import numpy as np
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.data_selection import DataSelection
from infrastructure.features.quantum.training.async_solve import AsyncSolve
problem = DataSelection(range(6), np.eye(6, dtype=np.float32), 2)
print(len(AsyncSolve(problem, QuantumConfig(), 0).result().decision))
"""


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert ran.stdout.split("\n") == ["the script runs", "2", ""], ran.stderr


def test_a_process_that_dies_is_reported() -> None:
    hanging = QuantumConfig(solver=f"{BAD}:Hanging", timeout=PATIENCE_SECONDS)
    background = AsyncSolve(problem_of("block_selection"), hanging, seed=0)
    assert not background.is_done
    os.kill(background._child.process.pid, signal.SIGKILL)
    waited_for(background)
    with pytest.raises(SamplerError, match=r"quantum\.solver_process_gone"):
        background.result()


def test_what_is_raised_there_is_reported() -> None:
    problem = Unanswerable("abc", -np.ones(3), np.eye(3), 1, gradient_norms=np.ones(3))
    background = AsyncSolve(problem, QuantumConfig(), seed=0)
    with pytest.raises(SamplerError, match="ValueError: these are no numbers"):
        background.result()


def test_who_is_no_longer_waited_for_ends_with_its_samplers() -> None:
    hanging = QuantumConfig(solver=f"{BAD}:Hanging", timeout=PATIENCE_SECONDS)
    background = AsyncSolve(problem_of("data_selection"), hanging, seed=0)
    there = psutil.Process(background._child.process.pid)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (samplers := there.children()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    background.close()
    background.close()
    gone, alive = psutil.wait_procs([there, *samplers], timeout=PATIENCE_SECONDS)
    assert len(gone) == 2
    assert alive == []
