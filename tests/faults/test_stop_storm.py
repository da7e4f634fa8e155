"""G10 in its short form: stopped at random instants, nothing is lost and nothing differs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.test_kill_storm import ROOT


def storm(directory: Path, *arguments: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.faults.stop_storm", str(directory), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, int] = json.loads(done.stdout)["G10"]
    return outcome


def test_a_stopped_training_has_lost_nothing_and_goes_on_to_the_same_end(tmp_path: Path) -> None:
    outcome = storm(tmp_path, "--stops", "6")
    assert outcome["stops"] >= 6
    assert outcome["finished"] >= 1
    assert [outcome[name] for name in ("unsaved", "slow", "differing", "failed")] == [0] * 4


@pytest.mark.parametrize(
    ("mutant", "shows_in"), [("saves_nothing", "unsaved"), ("forgets_generators", "differing")]
)
def test_the_storm_finds_a_defect(mutant: str, shows_in: str, tmp_path: Path) -> None:
    assert storm(tmp_path, "--stops", "5", "--mutant", mutant)[shows_in] > 0
