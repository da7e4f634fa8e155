from typing import Any

import pytest
import torch

from infrastructure.optimization import recommendations as module
from infrastructure.optimization.recommendations import Recommendation, fixed_bytes, recommend

FLOAT_BYTES = 4


@pytest.fixture(autouse=True)
def small_savings_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SAVING_BYTES", 1)


def savings(*arguments: Any, **options: Any) -> dict[str, int | None]:
    return {one.change: one.saves_bytes for one in recommend(*arguments, **options)}


def test_weights_gradients_and_moments_are_counted_exactly(small_llama: Any) -> None:
    small_llama.model.embed_tokens.requires_grad_(False)
    num_weights = sum(p.numel() for p in small_llama.parameters())
    num_trainable = sum(p.numel() for p in small_llama.parameters() if p.requires_grad)
    assert fixed_bytes(small_llama) == FLOAT_BYTES * (num_weights + 3 * num_trainable)


def test_the_largest_saving_comes_first_and_those_without_a_number_last() -> None:
    model = torch.nn.Linear(1000, 1000, bias=False)
    advice = savings(model, micro_batch_size=2)
    assert advice == {
        "optimization.lora_of_rank(rank=16)": 12_000_000 - 12 * 16 * 2000,
        "training.optimizer=adamw_8bit": 8_000_000 - 2_031_250,
        "optimization.halve_micro_batch(half=1)": None,
    }
    assert next(iter(advice)) == "optimization.lora_of_rank(rank=16)"


def test_an_optimizer_that_is_there_is_counted_as_it_is() -> None:
    model = torch.nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    advice = savings(model, optimizer, optimizer_name="sgd")
    assert advice == {"optimization.lora_of_rank(rank=16)": 8_000_000 - 12 * 16 * 2000}


def test_small_savings_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert recommend(torch.nn.Linear(100, 100)) == []


def test_checkpointing_is_recommended_until_it_is_on(small_llama: Any) -> None:
    assert "optimization.checkpointing()" in savings(small_llama)
    small_llama.gradient_checkpointing_enable({"use_reentrant": False})
    assert "optimization.checkpointing()" not in savings(small_llama)


def test_a_recommendation_names_what_it_saves_and_costs() -> None:
    shown = [str(Recommendation("a", "time", saves)) for saves in (3 << 20, None)]
    assert shown == [
        "optimization.change_saves(change=a, saved=3 MiB, costs=time)",
        "optimization.change_saves(change=a, saved=optimization.activations(), costs=time)",
    ]
    found = recommend(torch.nn.Linear(1000, 1000, bias=False), micro_batch_size=5)
    assert [one.costs for one in found] == [
        "optimization.trains_low_rank_matrices()",
        "optimization.moments_in_8_bits()",
        "optimization.same_result_smaller_batches()",
    ]
    assert found[-1].change == "optimization.halve_micro_batch(half=2)"


def test_checkpointing_is_that_of_the_model_inside_an_adapter(small_llama: Any) -> None:
    outer = torch.nn.Module()
    outer.get_base_model = lambda: small_llama  # type: ignore[assignment]
    [only] = recommend(outer)
    assert (only.change, only.costs) == (
        "optimization.checkpointing()",
        "optimization.costs_third_more_time()",
    )


@pytest.mark.parametrize(("width", "is_worth"), [(32, False), (33, True)])
def test_a_lora_is_recommended_where_it_halves_what_trains(width: int, is_worth: bool) -> None:
    """Of rank 16, it has 32 numbers for each of a square's `width`, with three kinds of 4 bytes."""
    model = torch.nn.Linear(2 * width, 2 * width, bias=False)
    found = savings(model, optimizer_name="sgd")
    assert [*found] == ["optimization.lora_of_rank(rank=16)"][:is_worth]
