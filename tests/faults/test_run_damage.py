"""G4 on whole runs, in short: one file of a run is damaged, and the same command is given again.

`tests/run/test_repair.py` has each kind of file by name; this draws them by chance.
"""

import pytest

from tests.faults.judge import complaints, run_in_fork

SIX = ("--trials", "6", "--seed", "3", "--no-defects")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_is_damaged_is_healed_or_named() -> None:
    cases = "--cases=finished, no place;stopped, no place"
    figures = run_in_fork("tests.faults.run_damage", *SIX, cases)
    assert figures["trials"] == 6
    assert figures["named"] > 0
    assert complaints("G4 runs", figures) == [], figures["wrong"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("defect", ["no repair", "sums are not compared"])
def test_a_planted_defect_is_found(defect: str) -> None:
    cases = "--cases=finished, no place;stopped, no place"
    arguments = ("--trials", "40", "--seed", "1", cases, "--defect", defect)
    assert complaints("G4 runs", run_in_fork("tests.faults.run_damage", *arguments)) != []
