"""The formula of the cache's gain, and a small measurement of it."""

import math

import pytest

from benchmarks.stackwise_cache import (
    counted_ratio,
    measured,
    missed_goals,
)
from benchmarks.stackwise_model import PUBLISHED, Shape
from tests.slow import slow

SMALL = Shape("Llama-3.1-8B", divisor=32, num_layers=3, length=16, batch_size=4, steps=2)


def test_a_head_as_large_as_nine_layers_costs_eighteen_forward_passes_of_one() -> None:
    qwen = PUBLISHED["Qwen2.5-0.5B"]
    head, layer = 151_936 * 896, 896 * 896 * (2 + 2 / 7) + 3 * 896 * 4864
    assert counted_ratio(qwen) == pytest.approx(3 + 2 * head / layer)


@slow  # three processes
def test_cached_losses_are_the_recomputed_ones() -> None:
    found = measured(SMALL, num_epochs=2)
    assert found["largest_loss_difference"] == 0
    assert [row["depth"] for row in found["rows"]] == [1, 2]
    assert all(math.isfinite(row["off"]) for row in found["rows"])
    found["rows"][0]["off"] = 0.11
    assert "depth 1: off" in missed_goals(found)
