from typing import Any

import pytest
import torch

from infrastructure.optimization.allocations import kept_for_backward
from infrastructure.optimization.recommendations import (
    MemoryUse,
    measure_use,
    recommend,
)

INPUTS = torch.arange(2048).view(8, 256) % 300
FLOAT_BYTES = 4


def forward(model: Any) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=INPUTS, labels=INPUTS).loss
    return loss


def test_weights_gradients_and_moments_are_counted_exactly(small_llama: Any) -> None:
    small_llama.model.embed_tokens.requires_grad_(False)
    num_weights = sum(p.numel() for p in small_llama.parameters())
    num_trainable = sum(p.numel() for p in small_llama.parameters() if p.requires_grad)
    use = measure_use(small_llama)
    assert use.weights_bytes == FLOAT_BYTES * num_weights
    assert use.gradients_bytes == FLOAT_BYTES * num_trainable
    assert use.optimizer_bytes == 2 * FLOAT_BYTES * num_trainable
    assert use.activations_bytes is None
    assert use.total_bytes == FLOAT_BYTES * (num_weights + 3 * num_trainable)


def test_an_optimizer_that_is_there_is_counted_as_it_is(small_llama: Any) -> None:
    optimizer = torch.optim.SGD(small_llama.parameters(), lr=0.1, momentum=0.9)
    forward(small_llama).backward()
    optimizer.step()
    use = measure_use(small_llama, optimizer=optimizer)
    assert use.optimizer_bytes == FLOAT_BYTES * use.num_trainable


def test_what_an_older_transformers_cannot_do_is_not_recommended(
    small_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    enable = small_llama.gradient_checkpointing_enable
    monkeypatch.setattr(
        small_llama,
        "gradient_checkpointing_enable",
        lambda gradient_checkpointing_kwargs: enable(gradient_checkpointing_kwargs),
    )
    use = measure_use(small_llama, lambda: forward(small_llama))
    assert list(use.checkpointed_bytes) == ["all"]


def test_the_saving_by_checkpointing_is_the_true_one(small_llama: Any) -> None:
    use = measure_use(small_llama, lambda: forward(small_llama))
    assert not small_llama.is_gradient_checkpointing
    small_llama.gradient_checkpointing_enable({"use_reentrant": False})
    with kept_for_backward(small_llama) as kept:
        forward(small_llama)
    assert use.checkpointed_bytes["all"] == kept[0]
    assert use.activations_bytes is not None
    advice = {one.change: one for one in recommend(use, micro_batch_size=8)}
    saving = advice["optimization.checkpointing()"]
    assert saving.saves_bytes == use.activations_bytes - kept[0]
    assert saving.is_measured
    assert "(measured)" in str(saving)


def test_the_largest_saving_comes_first_and_small_ones_are_left_out() -> None:
    use = MemoryUse(
        weights_bytes=400_000_000,
        gradients_bytes=400_000_000,
        optimizer_bytes=800_000_000,
        num_trainable=100_000_000,
        lora_bytes=12_000_000,
        activations_bytes=100_000_000,
        checkpointed_bytes={"selective": 60_000_000, "all": 99_999_999},
    )
    advice = recommend(use, micro_batch_size=2)
    assert [one.change for one in advice] == [
        "optimization.lora_of_rank(rank=16)",
        "training.optimizer=adamw_8bit",
        "optimization.halve_micro_batch(half=1)",
        "optimization.selective_checkpointing()",
    ]
    assert [one.saves_bytes for one in advice] == [
        1_188_000_000,
        800_000_000 - 203_125_000,
        50_000_000,
        40_000_000,
    ]


def test_an_8_bit_optimizer_is_not_recommended_where_there_is_one() -> None:
    use = MemoryUse(4 * 10**8, 4 * 10**8, 2 * 10**8, 10**8, 10**9, None, {})
    assert recommend(use, optimizer_name="adamw_8bit") == []


def test_activations_grow_with_the_examples() -> None:
    use = MemoryUse(1, 1, 1, 1, 1, 10, {"all": 3})
    several = use.of_examples(4)
    assert (several.activations_bytes, several.checkpointed_bytes) == (40, {"all": 12})
    unknown = MemoryUse(1, 1, 1, 1, 1, None, {})
    assert unknown.of_examples(4) == unknown
