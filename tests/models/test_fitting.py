"""A model that does not fit a run is refused, and a model is described in the run's record."""

import logging
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.models.fitting import (
    check_length,
    check_same_lora,
    check_vocabulary,
    choose_dtype,
    describe,
)
from infrastructure.models.model_inputs import PROJECTOR
from tests.models.architectures import tiny_model

CPU = torch.device("cpu")
WANTED = LoraConfig(r=4, alpha=8, dropout=0.25, target_modules=["q_proj", "v_proj"])


def tuned(**changed: Any) -> Any:
    """A model with the LoRA that is wanted, but for these of PEFT's arguments."""
    given = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.25, "target_modules": ["v_proj", "q_proj"]}
    return peft.get_peft_model(tiny_model("llama"), peft.LoraConfig(**{**given, **changed}))


@pytest.mark.parametrize(
    ("changed", "differences"),
    [
        ({}, None),
        ({"r": 2}, "r=4 (there 2)"),
        ({"lora_alpha": 4}, "alpha=8.0 (there 4)"),
        ({"lora_dropout": 0.0}, "dropout=0.25 (there 0.0)"),
        ({"use_dora": True}, "use_dora=False (there True)"),
        ({"use_rslora": True}, "use_rslora=False (there True)"),
        ({"modules_to_save": ["lm_head"]}, "trains in full=[] (there ['lm_head'])"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern={} (there {'q_proj': 2})"),
        (
            {"target_modules": ["q_proj", "model.layers.0.self_attn.v_proj"]},
            "target_modules=['q_proj', 'v_proj'] (there ['q_proj', 'v_proj'])",
        ),
        ({"r": 2, "lora_alpha": 4}, "r=4 (there 2), alpha=8.0 (there 4)"),
    ],
)
def test_a_lora_is_another_one_by_each_of_its_settings(
    changed: dict[str, Any], differences: str | None
) -> None:
    model = tuned(**changed)
    check_same_lora(model, None, "folder")
    if differences is None:
        check_same_lora(model, WANTED, "folder")
        model.peft_config["default"].modules_to_save = [PROJECTOR]  # of a model put together
        check_same_lora(model, WANTED, "folder")
        return
    with pytest.raises(ValueError, match="lora_settings_differ") as refused:
        check_same_lora(model, WANTED, "folder")
    expected = f"models.lora_settings_differ(folder=folder, differences={differences})"
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({}, {}),
        ({"use_dora": True, "use_rslora": True}, {"use_dora": True, "use_rslora": True}),
        ({"init_lora_weights": "gaussian"}, {"init": "gaussian"}),
        ({"modules_to_save": ["lm_head"]}, {"trains_in_full": ["lm_head"]}),
        ({"rank_pattern": {"q_proj": 2}}, {"rank_pattern": {"q_proj": 2}}),
        ({"target_modules": r".*\.o_proj"}, {"target_modules": r".*\.o_proj"}),
    ],
)
def test_a_lora_is_described_with_what_is_unusual_about_it(
    changed: dict[str, Any], more: dict[str, Any]
) -> None:
    described: Any = describe(tuned(**changed), ModelConfig(name="a", quantization="4bit"))
    plain = {"r": 4, "alpha": 8, "dropout": 0.25, "target_modules": ["q_proj", "v_proj"]}
    assert described["lora"] == {**plain, **more}
    assert (described["name"], described["quantization"]) == ("a", "4bit")
    assert (described["architecture"], described["attention"]) == ("LlamaForCausalLM", "sdpa")
    assert 0 < described["num_trainable"] < described["num_parameters"]


def test_weights_that_train_in_sixteen_bits_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose_dtype("bf16", trains_all=False, device=CPU) is torch.bfloat16
        assert choose_dtype("fp32", trains_all=True, device=CPU) is torch.float32
        assert choose_dtype("fp16", trains_all=False, device=CPU) is torch.float16
        assert caplog.messages == []
        assert choose_dtype("bf16", trains_all=True, device=CPU) is torch.bfloat16
    assert caplog.messages == ["models.bf16_rounds_updates_away()"]
    with pytest.raises(ValueError, match=r"models\.fp16_full_fine_tuning"):
        choose_dtype("fp16", trains_all=True, device=CPU)


def test_positions_and_tokens_fit_up_to_the_last_one() -> None:
    text = SimpleNamespace(max_position_embeddings=64)
    config: Any = SimpleNamespace(get_text_config=lambda: text, max_position_embeddings=8)
    for length in (None, 1, 64):
        check_length(config, length, "a")
    with pytest.raises(ValueError, match=r"max_length=65, num_positions=64, name=a"):
        check_length(config, 65, "a")
    del text.max_position_embeddings  # a model without a limit
    check_length(config, 65, "a")
    tokenizer: Any = SimpleNamespace(get_vocab=lambda: {"a": 9, "b": 3})
    check_vocabulary(10, tokenizer, "a")
    with pytest.raises(ValueError, match=r"name=a, largest=9, num_tokens=9\)"):
        check_vocabulary(9, tokenizer, "a")
