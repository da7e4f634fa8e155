"""The storm on a Trainer with the callback, in its short form; `make prove-durability` has the long
one."""

from pathlib import Path

import pytest

from tests.faults.judge import run_module

MODULE = "tests.faults.kill_storm_bridge"


def test_nothing_is_lost_and_nothing_differs(tmp_path: Path) -> None:
    outcome = run_module(MODULE, str(tmp_path), "--kills", "8")
    assert outcome["kills"] >= 8
    assert outcome["finished"] >= 1
    assert outcome["lost"] == outcome["damaged"] == outcome["differing"] == outcome["failed"] == 0


@pytest.mark.parametrize("mutant", ["random", "saved_before_the_evaluation"])
def test_a_defect_would_show(tmp_path: Path, mutant: str) -> None:
    outcome = run_module(MODULE, str(tmp_path), "--kills", "4", "--mutant", mutant)
    assert outcome["differing"] + outcome["failed"] > 0
