"""The benchmark of the dashboard's cost measures what it says."""

import pytest

from benchmarks.dashboard_viewers import interval, measure


def test_an_interval_holds_the_middle_of_what_was_seen() -> None:
    low, high = interval([0.9, 1.0, 1.0, 1.0, 1.1])
    assert 0.9 <= low < 1.0 < high <= 1.1
    assert interval([1.25] * 9) == (1.25, 1.25)


@pytest.mark.timeout(120)
def test_a_few_turns_are_compared_with_real_viewers() -> None:
    found = measure(num_viewers=2, rounds=2, seconds=2.0)
    assert found["viewers"] == 2
    assert found["interval_95"][0] <= found["step_ratio"] <= found["interval_95"][1]
    assert 0 <= found["server_share_of_machine"] < 0.5  # 0: less than the clock can tell
