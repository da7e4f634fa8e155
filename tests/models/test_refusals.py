"""Settings of a model are refused before anything is loaded, and only those without an effect."""

from typing import Any

import pytest

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.models import refusals
from infrastructure.models.refusals import (
    refuse_flash_attention,
    refuse_longer_examples,
    refuse_quantized_weights_that_train,
)


@pytest.mark.parametrize(
    ("attention", "has_gpu", "is_installed", "is_refused"),
    [
        ("flash_attention_2", True, True, False),
        ("flash_attention_2", True, False, True),
        ("flash_attention_2", False, True, True),
        ("sdpa", False, False, False),
        (None, False, False, False),
    ],
)
def test_flash_attention_needs_a_gpu_and_its_package(
    attention: str | None,
    has_gpu: bool,
    is_installed: bool,
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"flash_attn"} if is_installed else set()
    monkeypatch.setattr(refusals, "is_installed", there.__contains__)
    if not is_refused:
        refuse_flash_attention(attention, has_gpu=has_gpu)
        return
    with pytest.raises(ValueError, match=r"models\.flash_attention_unavailable"):
        refuse_flash_attention(attention, has_gpu=has_gpu)


@pytest.mark.parametrize("quantization", [None, "4bit", "8bit"])
@pytest.mark.parametrize("trains_lora", [True, False])
def test_quantized_weights_do_not_train(quantization: Any, trains_lora: bool) -> None:
    config = ModelConfig(quantization=quantization)
    if quantization is None or trains_lora:
        refuse_quantized_weights_that_train(config, trains_lora=trains_lora)
        return
    with pytest.raises(ValueError, match=rf"quantized_without_lora\(quantization={quantization}"):
        refuse_quantized_weights_that_train(config, trains_lora=trains_lora)


def test_an_example_may_fill_all_positions() -> None:
    refuse_longer_examples(8, 8, "a")
    shown = r"max_length_beyond_positions\(max_length=9, num_positions=8, name=a\)"
    with pytest.raises(ValueError, match=shown):
        refuse_longer_examples(9, 8, "a")
