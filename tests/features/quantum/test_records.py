"""The comparison of an answer with baselines, also in a file that is damaged."""

import pytest

from infrastructure.features.quantum.records import baseline_is_as_good


@pytest.mark.parametrize(
    ("energy", "alternatives", "is_as_good"),
    [
        (0.25, {"greedy": 0.5, "random": 0.3}, False),
        (0.25, {"greedy": 0.5, "random": 0.25}, True),
        (-2.0, {"greedy": -2.0 + 1e-6}, True),  # within rounding
        (-2.0, {"greedy": -2.0 + 3e-6}, False),
        (2, {"greedy": 2}, True),
        (0.25, {"greedy": "low", "random": 0.5}, False),
        (0.25, {"greedy": "low"}, False),
        (0.25, {}, False),
        (0.25, [0.1], False),
        (None, {"greedy": 0.5}, False),
    ],
)
def test_a_baseline_is_as_good_if_its_energy_is_as_low(
    energy: object, alternatives: object, is_as_good: bool
) -> None:
    record = {"energy": energy, "alternatives": alternatives}
    assert baseline_is_as_good(record) is is_as_good
