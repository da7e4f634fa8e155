"""Stack-wise training in short: killed in its phases, and while activations are written."""

from pathlib import Path

from tests.faults.judge import complaints, run_in_fork
from tests.slow import slow


@slow
def test_the_same_command_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    outcome = run_in_fork("tests.faults.stackwise_kills", str(tmp_path), "--kills", "3")
    assert outcome["kills"] == 3
    assert complaints("G1 stackwise", outcome) == []
