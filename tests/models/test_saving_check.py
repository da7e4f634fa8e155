"""Settings that would end the saving of a trained model are removed or refused before training."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from transformers import AutoConfig, GenerationConfig, LlamaConfig

from infrastructure.models.model_inputs import inner_model
from infrastructure.models.saving_check import make_writable, prepare_saving
from tests.models.architectures import tiny_model

GREEDY: dict[str, Any] = {"do_sample": False}
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@pytest.mark.parametrize(
    ("kept", "removed"),
    [
        *(
            (GREEDY, {name: value})
            for name, value in {
                **dict.fromkeys(("temperature", "top_p", "min_p", "top_h", "typical_p"), 0.3),
                **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), 0.1),
                "top_k": 7,
            }.items()
        ),
        *(({}, {name: True}) for name in OUTPUTS),
        ({"do_sample": True, "temperature": 0.3}, {}),
        ({"do_sample": None}, {"temperature": 0.3}),
        *(
            ({**GREEDY, "num_beams": 1}, {name: value})
            for name, value in {
                "early_stopping": True,
                "length_penalty": 0.3,
                "num_return_sequences": 3,
            }.items()
        ),
        ({**GREEDY, "num_beams": None}, {"length_penalty": 0.3}),
        ({**GREEDY, "num_beams": 2, "num_return_sequences": 2}, {"temperature": 0.3}),
        ({**GREEDY, "num_beams": 3, "length_penalty": 0.3}, {"temperature": 0.3}),
        (
            {**GREEDY, "return_dict_in_generate": True, "output_scores": True, "pad_token_id": 0},
            {"top_p": 0.3},
        ),
        (GREEDY, {"temperature": 0.3, "top_k": 7, "length_penalty": 2.0, "output_scores": True}),
        ({"eos_token_id": 2}, {"pad_token_id": -1}),
        ({"cache_implementation": "no such"}, {}),  # which nothing here can mend
    ],
)
def test_settings_without_effect_that_cannot_be_written_are_removed_and_no_others(
    tmp_path: Path, kept: dict[str, Any], removed: dict[str, Any]
) -> None:
    config = GenerationConfig()
    for name, value in {**kept, **removed}.items():
        setattr(config, name, value)
    model: Any = SimpleNamespace(generation_config=config)
    try:
        config.save_pretrained(tmp_path)
        removed = {}
    except (ValueError, AttributeError):
        kept = {**kept, **dict.fromkeys(removed)}
    names = ", ".join(f"{name} {value}" for name, value in removed.items())
    shown = f"models.generation_settings_removed(file=generation_config.json, names={names})"
    assert make_writable(model) == ([shown] if removed else [])
    assert {name: getattr(config, name) for name in kept} == kept
    assert make_writable(model) == []
    assert make_writable(torch.nn.Linear(1, 1)) == []


def test_a_model_learns_its_ends_and_loses_what_cannot_be_written() -> None:
    model = tiny_model("llama")
    model.generation_config.do_sample, model.generation_config.top_p = False, 0.5
    (note,) = prepare_saving(model, [5, 2])
    assert "names=top_p 0.5" in note
    assert model.generation_config.eos_token_id == [2, 5]
    plain: Any = torch.nn.Linear(1, 1)
    plain.generation_config = SimpleNamespace(eos_token_id=2)
    assert prepare_saving(plain, [5]) == []
    assert plain.generation_config.eos_token_id == 2, "no model of transformers"


def tuned() -> Any:
    return peft.get_peft_model(tiny_model("llama"), peft.LoraConfig(target_modules=["q_proj"]))


@pytest.mark.parametrize("is_lora", [False, True])
def test_what_cannot_be_saved_is_refused_with_its_reason(
    is_lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tuned() if is_lora else tiny_model("llama")
    inner = model.get_base_model() if is_lora else model
    inner.name_or_path = "owner/name"
    prepare_saving(model, [])
    shown = r"models\.model_cannot_be_saved\(name=owner/name, reason={}, file=generation_config"
    config = model.peft_config["default"] if is_lora else model.config
    config.init_lora_weights = object()
    with pytest.raises(ValueError, match=shown.format("Object of type object is not JSON .*")):
        prepare_saving(model, [])
    config.init_lora_weights = True

    reasons = {"": "RuntimeError", f"no\n  {400 * 'x'}": f"no {297 * 'x'}"}
    for reader, message in itertools.product((AutoConfig, GenerationConfig), reasons):
        with monkeypatch.context() as patch:
            patch.setattr(reader, "from_pretrained", failing(message))
            if is_lora and reader is AutoConfig:
                prepare_saving(model, [])  # a LoRA has no such file
                continue
            with pytest.raises(ValueError, match=shown.format(reasons[message])):
                prepare_saving(model, [])


def failing(message: str) -> Callable[[object], None]:
    def fail(_folder: object) -> None:
        raise RuntimeError(message)

    return fail


def test_a_configuration_with_code_of_its_own_is_not_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading it would import that code."""
    model = tiny_model("llama")
    own = type("Own", (LlamaConfig,), {"__module__": "transformers_modules.own"})
    model.config.__class__ = own
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda _: pytest.fail("it was read"))
    prepare_saving(model, [])


def test_quantized_weights_need_a_lora() -> None:
    for model in (tuned(), tiny_model("llama")):
        inner: Any = inner_model(model)
        inner.name_or_path = "owner/name"
        inner.model.layers[0].mlp.up_proj.__class__ = type("Linear4bit", (torch.nn.Linear,), {})
        if model is not inner:
            prepare_saving(model, [])
            continue
        with pytest.raises(ValueError, match=r"quantized_full_fine_tuning\(name=owner/name\)"):
            prepare_saving(model, [])
