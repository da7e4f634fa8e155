"""G10 in its short form: stopped at random instants, nothing is lost and nothing differs."""

from pathlib import Path

import pytest

from tests.faults.judge import Figures, complaints, run_in_fork
from tests.slow import slow_but


def storm(directory: Path, *arguments: str) -> Figures:
    return run_in_fork("tests.faults.stop_storm", str(directory), *arguments)


def test_a_stopped_training_has_lost_nothing_and_goes_on_to_the_same_end(tmp_path: Path) -> None:
    outcome = storm(tmp_path, "--stops", "2")
    assert outcome["stops"] >= 2
    assert outcome["finished"] >= 1
    assert complaints("G10", outcome) == []


@pytest.mark.parametrize(
    ("mutant", "num_stops", "shows_in"),
    slow_but([], [("saves_nothing", "2", "unsaved"), ("forgets_generators", "8", "differing")]),
)
def test_the_storm_finds_a_defect(
    mutant: str, num_stops: str, shows_in: str, tmp_path: Path
) -> None:
    assert storm(tmp_path, "--stops", num_stops, "--mutant", mutant)[shows_in] > 0
