"""G1 on whole runs, in short: processes, helpers and machines die, and the end is the same."""

from pathlib import Path

import pytest

from tests.faults.judge import complaints, run_in_fork


@pytest.mark.timeout(600)
def test_the_same_command_goes_on_to_the_same_end(tmp_path: Path) -> None:
    outcome = run_in_fork("tests.faults.run_storm", str(tmp_path), "--kills", "1")
    assert outcome["kills"] >= 1
    assert outcome["finished"] >= 1
    assert complaints("G1", outcome) == []
