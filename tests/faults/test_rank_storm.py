"""G1 on several processes, in short: a rank or its agent dies, and the end is the same."""

from pathlib import Path

import pytest

from tests.faults.judge import complaints, run_module
from tests.slow import slow


@slow
@pytest.mark.timeout(900)
def test_killed_ranks_and_agents_come_to_the_same_end(tmp_path: Path) -> None:
    outcome = run_module("tests.faults.rank_storm", str(tmp_path / "storm"), "--kills", "3")
    assert outcome["kills"] >= 1
    assert outcome["finished"] >= 1
    assert complaints("G1 ranks", outcome) == []
