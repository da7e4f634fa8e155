"""G9 in short: machines die while they copy to a Drive, and what was confirmed is still there."""

import pytest

from infrastructure.backup.replication.copier import Copier
from tests.faults.drive_model import MUTANTS, deaths_of, rotation

NUM_DEATHS = 300
# How many deaths it takes, and from which seed on: most histories do not show the first defect.
MUTANT_DEATHS = {"prune at once": (50, 50), "manifest first": (50, 0), "believe the mount": (50, 0)}


def test_no_death_loses_a_version_that_was_confirmed() -> None:
    outcome = deaths_of(Copier, NUM_DEATHS)
    assert (outcome.deaths, outcome.lost, outcome.not_found) == (NUM_DEATHS, 0, 0)
    assert outcome.confirmed > 100, "nothing was at stake"
    assert outcome.pruned > 50, "nothing was ever removed"
    assert outcome.fenced == 0, "there was no other machine"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_copier_with_a_defect_is_found_out(name: str) -> None:
    assert deaths_of(MUTANTS[name], *MUTANT_DEATHS[name]).lost > 0


def test_rotation_of_folders_loses_on_the_same_drive() -> None:
    assert rotation(200)["none_whole"] > 0
