"""A gate's gradient is what the loss does when its component is turned down a little."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.features.quantum.problems.block_selection import sampled_fisher
from infrastructure.features.quantum.problems.rank_allocation import RankAllocation
from infrastructure.features.quantum.training.fisher_labels import SampledLabels
from infrastructure.features.quantum.training.lora_rank_gradients import (
    gated_layers,
    num_components,
    rank_gradients,
)
from tests.features.quantum.training.small_adapters import FP32, LORA, adapter_for, examples
from tests.training.toy import ToyAdapter


def loss_of(adapter: Any, rows: list[Any]) -> float:
    with torch.no_grad():
        batch = adapter.prepare_batch(rows)
        return float(adapter.compute_loss(adapter.model.eval(), batch).loss_sum.double())


@pytest.mark.parametrize("packing", [True, False])
def test_it_is_the_slope_of_the_loss(saved_llama: Path, packing: bool) -> None:
    adapter = adapter_for(saved_llama, lora=LORA, packing=packing)
    assert adapter.model is not None
    rows = examples(3)
    found = rank_gradients(adapter.model, adapter, [rows[:2], rows[2:]], precision=FP32)
    ranks = num_components(adapter.model)
    assert found.shape == (3, sum(ranks.values())) == (3, 14 * 4)
    step, layers = 0.05, list(gated_layers(adapter.model).values())
    for gate in (0, 5, 30, 55):
        row = layers[gate // 4].weight.data[gate % 4]
        kept, losses = row.clone(), []
        for factor in (1 + step, 1 - step):
            row.copy_(factor * kept)
            losses.append([loss_of(adapter, [one]) for one in rows])
        row.copy_(kept)
        slopes = (np.array(losses[0]) - np.array(losses[1])) / (2 * step)
        np.testing.assert_allclose(found[:, gate], slopes, rtol=0.02, atol=2e-4)


def test_labels_drawn_from_the_model_have_no_slope_in_the_mean(saved_llama: Path) -> None:
    """That, and nothing else, makes their squares a Fisher matrix; the data's labels have one."""
    adapter = adapter_for(saved_llama, lora=LORA)
    assert adapter.model is not None
    rows = examples(40)
    by_data = rank_gradients(adapter.model, adapter, [rows], precision=FP32)
    drawn = np.concatenate(
        [
            rank_gradients(adapter.model, adapter, [rows], precision=FP32, labels_seed=seed)
            for seed in range(6)
        ]
    )

    def unlikely(sums: np.ndarray) -> float:
        """Mean squared z-value of the gates' means: 1 where the true means are 0."""
        return float(np.mean(len(sums) * sums.mean(axis=0) ** 2 / sums.var(axis=0)))

    assert unlikely(drawn) < 2
    assert unlikely(by_data) > unlikely(drawn)


def test_seeds_repeat_and_nothing_is_left_behind(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama, lora=LORA)
    model = adapter.model
    assert model is not None
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}

    def measured(seed: int) -> np.ndarray:
        return rank_gradients(model, adapter, [examples(3)], precision=FP32, labels_seed=seed)

    assert np.array_equal(measured(1), measured(1))
    assert not np.array_equal(measured(1), measured(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_labels_are_drawn_as_the_model_predicts(saved_llama: Path) -> None:
    """From hidden states in chunks as from all logits."""
    adapter: Any = adapter_for(saved_llama)
    rows = examples(2)
    batch, model = adapter.prepare_batch(rows), adapter.model.eval()
    fast = [SampledLabels(model, adapter, FP32, s)(batch)["targets"] for s in range(300)]
    assert adapter.token_loss.method == "hidden states"
    adapter.token_loss.method = "all logits"
    slow = [SampledLabels(model, adapter, FP32, s)(batch)["targets"] for s in range(300)]
    assert fast[0].shape == batch["targets"].shape
    agreement = [float((a == b).float().mean()) for a, b in zip(fast, slow, strict=True)]
    assert np.mean(agreement) > 0.99
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
    shares = logits[0, batch["target_positions"][0]].softmax(-1)
    drawn = torch.stack(fast)[:, 0]
    assert float(shares[drawn].mean()) == pytest.approx(float((shares**2).sum()), rel=0.1)


def test_the_problem_is_made_of_it(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama, lora=LORA)
    assert adapter.model is not None
    rows, ranks = examples(6), num_components(adapter.model)
    tokens = adapter.count_items(rows)
    by_data = rank_gradients(adapter.model, adapter, [rows], precision=FP32)
    drawn = rank_gradients(adapter.model, adapter, [rows], precision=FP32, labels_seed=0)
    problem = RankAllocation(ranks, by_data.sum(axis=0) / tokens, sampled_fisher(drawn, tokens), 20)
    kept = problem.decode(problem.alternatives()["diagonal_fisher"])
    assert list(kept) == list(ranks)
    assert sum(len(components) for components in kept.values()) == 20


def test_without_lora_there_is_nothing_to_gate(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama)
    assert adapter.model is not None
    with pytest.raises(ValueError, match=r"quantum\.no_lora_components"):
        rank_gradients(adapter.model, adapter, [examples(2)], precision=FP32)


def test_what_has_no_labels_is_refused() -> None:
    adapter = ToyAdapter(None)
    with pytest.raises(ValueError, match=r"quantum\.no_labels_to_sample.*adapter=ToyAdapter"):
        SampledLabels(adapter.initialize_model(), adapter, FP32, 0)
