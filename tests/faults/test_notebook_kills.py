"""Run all, kill, Run all, in short: a kernel dies, then one with its machine; the end is the same.

Two kernels, two installations and four trainings: that takes its time.
"""

from pathlib import Path

import pytest

from tests.faults.judge import complaints, run_module
from tests.slow import slow


@slow
@pytest.mark.timeout(600)
def test_run_all_again_comes_to_the_same_end(tmp_path: Path) -> None:
    outcome = run_module("tests.faults.notebook_kills", str(tmp_path), "--kills", "2")
    assert outcome["kills"] == outcome["finished"] >= 2
    assert outcome["machines"] >= 1
    assert complaints("notebooks", outcome) == []
