"""A finished run and its copy, in short: killed to the last byte, given back by its place."""

from pathlib import Path

import pytest

from tests.faults.judge import Figures, complaints, run_in_fork
from tests.slow import slow


def storm(directory: Path, *arguments: str) -> Figures:
    return run_in_fork("tests.faults.end_storm", str(directory), *arguments)


def test_the_place_gives_the_finished_model_back(tmp_path: Path) -> None:
    outcome = storm(tmp_path, "--kills", "1", "--only", "full")
    assert outcome["kills"] >= 1
    assert outcome["runs"] >= 1
    assert complaints("G1 ends", outcome) == []


@slow
@pytest.mark.parametrize("mutant", ["not completed", "says confirmed"])
def test_the_storm_finds_a_defect(mutant: str, tmp_path: Path) -> None:
    outcome = storm(tmp_path, "--kills", "12", "--only", "full", "--mutant", mutant)
    assert complaints("G1 ends", outcome) != []
