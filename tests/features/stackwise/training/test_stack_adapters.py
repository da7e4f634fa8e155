"""Low-rank pairs: their scale, their first values, and the layers that get them."""

from typing import Any

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_adapters import (
    LowRankPair,
    StackAdapters,
    linear_shape,
    rank_of,
)
from infrastructure.features.stackwise.training.stack_phases import plan_stacks
from tests.models.architectures import tiny_model


def test_a_pair_adds_its_scaled_product() -> None:
    pair, x = LowRankPair(6, 3, rank=2, alpha=5.0, dropout=0.5), torch.randn(4, 6).double()
    assert not pair.lora_B.any()
    assert 0 < pair.lora_A.abs().max() <= 6**-0.5
    torch.nn.init.normal_(pair.lora_B)
    expected = 2.5 * pair.lora_B @ pair.lora_A
    assert torch.allclose(pair.update(), expected)
    dropped = [pair(x) for _ in range(2)]
    assert not torch.equal(*dropped)
    pair.eval()
    assert torch.allclose(pair(x), x.float() @ expected.T, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [(4, 6.0), (4, 6.0)]),
        ({"qlora_strategy": "variable"}, [(4, 6.0), (4, 6.0)]),
        ({"qlora_strategy": "variable", "qlora_ranks": {1: 8}}, [(4, 6.0), (8, 12.0)]),
        ({"qlora_ranks": {1: 8}}, [(4, 6.0), (4, 6.0)]),
    ],
)
def test_a_stack_with_a_rank_of_its_own_keeps_its_scale(
    more: dict[str, Any], expected: list[tuple[int, float]]
) -> None:
    config = TrainingConfig(qlora_rank=4, qlora_alpha=6.0, **more)
    assert [rank_of(config, stack) for stack in range(2)] == expected


@pytest.mark.parametrize(("name", "num_linear"), [("llama", 7), ("gpt2", 4)])
@pytest.mark.parametrize("is_full", [True, False])
def test_all_linear_layers_of_a_trunk_get_their_pairs(
    name: str, num_linear: int, is_full: bool
) -> None:
    """The same values each time, and without a draw from the random numbers of the run."""
    config = TrainingConfig(
        mode="blockwise",
        block_size=1,
        qlora_enabled=True,
        qlora_rank=3,
        qlora_alpha=6.0,
        qlora_dropout=0.25,
        adapters_full_precision=is_full,
    )
    made = []
    for seed in (1, 1, 2):
        rack = Rack(tiny_model(name).to(torch.bfloat16))
        plan, random = plan_stacks(config, rack, 1), torch.get_rng_state()
        StackAdapters(config, plan, list(rack.layers), seed)
        assert torch.equal(random, torch.get_rng_state())
        made.append({n: m for n, m in rack.model.named_modules() if isinstance(m, LowRankPair)})
    first, second, other = made
    assert len(first) == num_linear
    assert all(".0.stack_adapters." in key and key.endswith(".1") for key in first)
    for key, pair in first.items():
        linear = rack.layers[0].get_submodule(
            key.split("stack_adapters.")[1][:-2].replace("__", ".")
        )
        shape = linear_shape(linear)
        assert shape is not None
        assert (pair.lora_A.shape, pair.lora_B.shape) == ((3, shape[0]), (shape[1], 3))
        assert (pair.scale, pair.dropout) == (2.0, 0.25)
        assert pair.lora_A.dtype == (torch.float32 if is_full else torch.bfloat16)
        assert torch.equal(pair.lora_A, second[key].lora_A)
        assert not torch.equal(pair.lora_A, other[key].lora_A)
    assert linear_shape(torch.nn.Linear(5, 2)) == (5, 2)
    assert linear_shape(torch.nn.LayerNorm(5)) is None
