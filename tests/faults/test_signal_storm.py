"""G10 of commands in its short form: signals at random instants lose nothing and change nothing."""

from pathlib import Path

import pytest

from tests.faults.judge import complaints, run_in_fork
from tests.slow import slow, slow_but

MODULE = "tests.faults.signal_storm"


@slow  # tests/field/test_stops.py has a signal in each part of such a run
def test_a_method_that_gets_signals_loses_no_step_and_ends_with_the_same_weights(
    tmp_path: Path,
) -> None:
    outcome = run_in_fork(MODULE, str(tmp_path), "--kinds", "orpo", "--sequences", "2")
    assert outcome["sequences"] >= 2
    assert outcome["finished"] >= 1
    assert complaints("G10", outcome) == []


@pytest.mark.parametrize(
    "mutant", slow_but([], ["breaks_off_any_step", "ends_without_its_last_save"])
)
def test_the_storm_finds_a_defect(mutant: str, tmp_path: Path) -> None:
    arguments = ("--kinds", "orpo", "--sequences", "6", "--mutant", mutant)
    assert run_in_fork(MODULE, str(tmp_path), *arguments)["unsaved"] > 0
