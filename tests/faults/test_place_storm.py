"""G17 in short: a destination loses, changes and hides what a run copies to it."""

import pytest

from tests.backup.backends.hub_server import TOKEN
from tests.faults.place_storm import (
    MUTANTS,
    Outcome,
    is_caught,
    storm,
    storm_on_disk,
    storm_over_http,
)
from tests.slow import slow

# of huggingface_hub's own upload
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def require_truth(outcome: Outcome) -> None:
    assert outcome.statuses > 100, "nothing was claimed"
    assert outcome.withdrawn > 0, "nothing was at stake"
    wrong = (outcome.believed, outcome.lost, outcome.unsaved, outcome.both_wrote)
    assert wrong == (0, 0, 0, 0)


def test_no_status_claims_more_than_was_seen_and_its_promise_is_kept() -> None:
    require_truth(storm(10))


def test_a_folder_that_somebody_else_changes_keeps_the_promise() -> None:
    require_truth(storm_on_disk(7))


def test_a_repository_over_http_keeps_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    require_truth(storm_over_http(7, first_seed=1))


@slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_copier_with_a_defect_is_found_out(name: str) -> None:
    assert is_caught(MUTANTS[name])
