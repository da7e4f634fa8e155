"""G1 in its short form: `make prove-durability` has the long one."""

from pathlib import Path

import pytest

from tests.faults.judge import Figures, run_in_fork
from tests.slow import slow_but


def storm(directory: Path, *arguments: str) -> Figures:
    return run_in_fork("tests.faults.kill_storm", str(directory), *arguments)


@pytest.mark.parametrize("where", [[], ["--in-background"]], ids=["here", "in background"])
def test_nothing_is_lost_and_nothing_differs(tmp_path: Path, where: list[str]) -> None:
    outcome = storm(tmp_path, "--kills", "5", *where)
    assert outcome["kills"] >= 5
    assert outcome["finished"] >= 1
    assert outcome["lost"] == outcome["damaged"] == outcome["differing"] == outcome["failed"] == 0


@pytest.mark.parametrize("mutant", slow_but([], ["random", "optimizer", "manifest_first"]))
def test_a_defect_would_show(tmp_path: Path, mutant: str) -> None:
    outcome = storm(tmp_path, "--kills", "15", "--mutant", mutant)
    assert outcome["damaged"] + outcome["differing"] + outcome["failed"] > 0
