"""The benchmark of the dashboard's cost measures what it says."""

import pytest

from benchmarks.dashboard_viewers import measure
from tests.slow import slow


@slow
@pytest.mark.timeout(120)
def test_a_few_turns_are_compared_with_real_viewers() -> None:
    found = measure(num_viewers=2, rounds=2, seconds=2.0)
    assert found["viewers"] == 2
    assert found["interval_95"][0] <= found["step_ratio"] <= found["interval_95"][1]
    assert 0 <= found["server_share_of_machine"] < 0.5  # 0: less than the clock can tell
