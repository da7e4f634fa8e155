"""Tensor bytes are counted as they are, and block-wise training holds what its formula says."""

import pytest
import torch

from benchmarks.stackwise_memory import arms, compared, measure, missed_goals
from benchmarks.stackwise_model import Shape
from benchmarks.tensor_peak import TensorPeak

SMALL = Shape(divisor=32, num_layers=4, length=16, batch_size=1)


def test_a_storage_counts_once_and_until_it_is_freed() -> None:
    linear = torch.nn.Linear(100, 100, bias=False)
    peak = TensorPeak()
    peak.count(linear.parameters(), "weights")
    peak.count([linear.weight.t()], "weights")
    with peak:
        given = torch.ones(10, 100)
        loss = linear(given).sum()
        loss.backward()
        assert peak.now == 2 * 40_000 + 4_000 + 4  # weight, gradient, input, loss
        assert peak.highest >= peak.now
        linear.weight.grad = None
        assert peak.now == 40_000 + 4_000 + 4
        linear.weight.data = linear.weight.data.to(torch.bfloat16)
        assert peak.now == 20_000 + 4_000 + 4
    assert peak.at_peak["weights"] == 40_000


def test_blocks_hold_what_the_formula_gives() -> None:
    """Weights in bf16, and in the block that trains 16 bytes for each, of which 4 are the weight's
    own."""
    names = ("full", "4 blocks, bf16")
    assert set(names) <= set(arms(4))
    full, blocks = compared([measure(name, SMALL) for name in names])
    size = full["weights_of_layers"]
    assert full["states"]["layers"] == pytest.approx(16 * size, rel=0.001)
    assert blocks["states"]["layers"] == pytest.approx((2 * 3 / 4 + 16 / 4) * size, rel=0.001)
    assert blocks["states"]["layers_frozen"] == pytest.approx(2 * 3 / 4 * size, rel=0.001)
    assert blocks["against_formula"] == pytest.approx(5.5 / 6, rel=0.001)
    assert blocks["steps"] == 4 * full["steps"]
    assert blocks["tensor_bytes_against_full"] < 0.8
    assert missed_goals([{**blocks, "against_formula": 0.8}], {})[-1] == "4 blocks, bf16: formula"
