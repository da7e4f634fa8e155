"""The page that compares everything on with everything off."""

import pytest

from benchmarks.everything_on import page, ratios


def test_each_round_is_compared_by_itself() -> None:
    speeds = {"off": [1000.0, 2000.0, 1000.0], "on": [990.0, 1900.0, 980.0]}
    assert ratios(speeds) == pytest.approx([0.99, 0.95, 0.98])
    text = page(speeds, 210)
    assert "there are 0.980 times" in text
    assert "the least of a round is 0.950" in text
    assert "| 2 | 2,000 | 1,900 | 0.950 |" in text
