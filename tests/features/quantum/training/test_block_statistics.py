"""Moments of blocks: the slope is the optimizer's own step's, and nothing is left behind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.features.quantum.problems.block_selection import BlockSelection, sampled_fisher
from infrastructure.features.quantum.training.block_statistics import (
    block_statistics,
    next_moves,
    trainable_blocks,
)
from tests.features.quantum.training.small_adapters import FP32, LORA, adapter_for, examples


def backward(adapter: Any, rows: list[Any]) -> None:
    output = adapter.compute_loss(adapter.model.eval(), adapter.prepare_batch(rows))
    (output.loss_sum / output.num_items).backward()


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_move_is_the_step_that_the_optimizer_then_makes(
    saved_llama: Path, kind: Any, steps_before: int
) -> None:
    adapter = adapter_for(saved_llama)
    model = adapter.model
    assert model is not None
    optimizer = kind(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(steps_before):
        backward(adapter, examples(4, seed=step))
        optimizer.step()
        optimizer.zero_grad()
    backward(adapter, examples(4, seed=9))
    gradients = {p: p.grad for p in model.parameters() if p.grad is not None}
    moves = next_moves(optimizer, gradients)
    before = {p: p.detach().clone() for p in gradients}
    optimizer.step()
    for parameter, was in before.items():
        made = parameter.detach() - was
        assert torch.allclose(made, moves[parameter], rtol=2e-2, atol=2e-7)


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_slope_is_that_of_the_loss_along_each_block(saved_llama: Path, lora: Any) -> None:
    adapter = adapter_for(saved_llama, lora=lora)
    model = adapter.model
    assert model is not None
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, rows = torch.optim.AdamW(trained, lr=1e-3), examples(6)
    found = block_statistics(model, adapter, [rows[:3], rows[3:]], optimizer, precision=FP32)
    assert found.blocks == ["block 0", "block 1"]
    assert found.num_tokens == adapter.count_items(rows)
    assert found.sampled_dots.shape == (2, 2)
    backward(adapter, rows)
    gradients = {p: p.grad.clone() for p in trained if p.grad is not None}
    moves = next_moves(optimizer, gradients)
    for i, block in enumerate(trainable_blocks(model).values()):
        slope = sum(float((gradients[p] * moves[p]).sum()) for p in block.values())
        norm = sum(float(gradients[p].square().sum()) for p in block.values()) ** 0.5
        assert found.linear[i] == pytest.approx(slope, rel=1e-3)
        assert found.gradient_norms[i] == pytest.approx(norm, rel=1e-3)
        assert found.linear[i] < 0


def test_the_model_is_left_as_it_was(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama)
    model = adapter.model
    assert model is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    backward(adapter, examples(2))
    model.train()
    kept = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    weights, random = [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
    batches = [examples(3), examples(3, seed=1)]
    one = block_statistics(model, adapter, batches, optimizer, precision=FP32, seed=4)
    other = block_statistics(model, adapter, batches, optimizer, precision=FP32, seed=4)
    assert np.array_equal(one.sampled_dots, other.sampled_dots)
    for parameter, was, (gradient, values) in zip(model.parameters(), weights, kept, strict=True):
        assert torch.equal(parameter, was)
        assert parameter.grad is gradient
        assert gradient is None or torch.equal(gradient, values)
    assert torch.equal(random, torch.get_rng_state())
    assert not optimizer.state
    assert all(module.training for module in model.modules())


def test_the_problem_is_made_of_it(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama)
    model = adapter.model
    assert model is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [examples(3, seed=seed) for seed in range(4)]
    found = block_statistics(model, adapter, batches, optimizer, precision=FP32)
    curvature = sampled_fisher(found.sampled_dots, found.num_tokens)
    problem = BlockSelection(
        found.blocks, found.linear, curvature, 1, gradient_norms=found.gradient_norms
    )
    assert problem.decode(problem.alternatives()["gradient_norm"])[0] in found.blocks
    assert np.linalg.eigvalsh(curvature).min() >= -1e-12


def test_what_has_no_blocks_is_refused(saved_llama: Path) -> None:
    with pytest.raises(ValueError, match=r"quantum\.no_numbered_blocks_train"):
        trainable_blocks(torch.nn.Linear(2, 2))
    adapter = adapter_for(saved_llama)
    model = adapter.model
    assert model is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with pytest.raises(ValueError, match=r"quantum\.blocks_without_trained_tokens"):
        block_statistics(model, adapter, [], optimizer, precision=FP32)
