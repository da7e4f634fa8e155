"""G12 in its short form: `make prove-durability` has the long one."""

import pytest

from tests.faults.judge import run_in_fork
from tests.slow import slow_but


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutant", slow_but([[]], [[], ["--mutant", "no_lock"]]), ids=["locked", "without lock"]
)
def test_of_two_processes_one_trains_and_a_killed_one_is_replaced(mutant: list[str]) -> None:
    """In a process of its own: it forks, and sets what it forks with."""
    found = run_in_fork("tests.faults.races", "--races", "4", "--careless-races", "3", *mutant)
    assert found["races"] == 4
    assert found["kills"] + found["refused"] > 0 or mutant
    assert (found["both_wrote"] > 0) == bool(mutant)
    if not mutant:
        assert found["lost"] == found["failed"] == 0
        assert found["mutants_caught"] == found["mutants"] == 1
        assert found["slowest_takeover_seconds"] < 30
