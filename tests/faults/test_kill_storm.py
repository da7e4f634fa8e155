"""G1 in its short form: `make prove-durability` has the long one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow_but

ROOT = Path(__file__).resolve().parents[2]


def storm(directory: Path, *arguments: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.kill_storm", str(directory), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    outcome: dict[str, int] = json.loads(done.stdout)["G1"]
    return outcome


@pytest.mark.parametrize("where", [[], ["--in-background"]], ids=["here", "in background"])
def test_nothing_is_lost_and_nothing_differs(tmp_path: Path, where: list[str]) -> None:
    outcome = storm(tmp_path, "--kills", "12", *where)
    assert outcome["kills"] >= 12
    assert outcome["finished"] >= 1
    assert outcome["lost"] == outcome["damaged"] == outcome["differing"] == outcome["failed"] == 0


@pytest.mark.parametrize("mutant", slow_but(["random"], ["random", "optimizer", "manifest_first"]))
def test_a_defect_would_show(tmp_path: Path, mutant: str) -> None:
    outcome = storm(tmp_path, "--kills", "15", "--mutant", mutant)
    assert outcome["damaged"] + outcome["differing"] + outcome["failed"] > 0
