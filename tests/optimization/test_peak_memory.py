"""What is in peak_memory_cases.py, in a process of its own.

The C library keeps the memory of earlier blocks, so in a process with a past a new block may take
none from the system.
"""

from tests.optimization.fresh_process import run_cases


def test_all_cases_hold_in_a_fresh_process() -> None:
    assert run_cases("peak_memory_cases.py") == ""
