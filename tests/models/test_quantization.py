"""Four and eight bits train for real, on a CPU, also when an evaluation comes in between."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.models.flops import arithmetic_of
from infrastructure.models.model_manager import LoadedModel, ModelManager, load_saved
from infrastructure.models.quantization import (
    keep_trainable_layout,
    layers_not_in_blocks,
    note_on_experts,
    quantization_config,
    quantized_layers,
)
from infrastructure.models.saving import save_model
from infrastructure.models.transformers_backend import LoadOptions, _placement
from tests.slow import slow_but

CPU = torch.device("cpu")


def frozen_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name: p.detach().clone() for name, p in named if not p.requires_grad}


def load(folder: Path, kind: str, **settings: object) -> LoadedModel:
    lora = LoraConfig(r=8, alpha=16)
    config = ModelConfig(name=str(folder), quantization=kind, lora_config=lora, **settings)
    return ModelManager(config, device=CPU, seed=0, gradient_checkpointing=True).load()


def train(model: torch.nn.Module, input_ids: torch.Tensor, evaluate: bool) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(8):
        if evaluate:
            model.eval()
            with torch.no_grad():
                model(input_ids)
        model.train()
        loss = model(input_ids, labels=input_ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["4bit", "8bit"])
def test_qlora_learns_and_the_base_stays(
    llama_folder: Path, input_ids: torch.Tensor, kind: str
) -> None:
    loaded = load(llama_folder, kind)
    # seven linear layers in each of two blocks; the head keeps its precision
    assert len(quantized_layers(loaded.model)) == 14
    # the inference layout of some CPUs, which cannot be trained; no effect on others
    assert not any(
        getattr(layer, "support_avx512bf16_for_cpu", False)
        for layer in quantized_layers(loaded.model)
    )
    layer: Any = quantized_layers(loaded.model)[0]
    if kind == "4bit":  # as QLoRA has it
        state = layer.weight.quant_state
        assert (state.quant_type, state.nested, layer.compute_dtype) == ("nf4", True, torch.float32)
    assert loaded.description["quantization"] == kind
    assert loaded.description["num_parameters"] > loaded.description["num_trainable"] * 4
    base = frozen_weights(loaded.model)
    losses = train(loaded.model, input_ids, evaluate=False)
    assert losses[-1] < losses[0] - 0.5
    after = frozen_weights(loaded.model)
    assert base
    assert all(torch.equal(base[name], after[name]) for name in base)


@pytest.mark.parametrize("kind", slow_but(["4bit"], ["4bit", "8bit"]))
def test_evaluation_in_between_changes_nothing(
    llama_folder: Path, input_ids: torch.Tensor, kind: str
) -> None:
    without = train(load(llama_folder, kind).model, input_ids, evaluate=False)
    with_evaluation = train(load(llama_folder, kind).model, input_ids, evaluate=True)
    assert with_evaluation == without


def test_a_four_bit_weight_counts_as_one(llama_folder: Path) -> None:
    quantized = load(llama_folder, "4bit")
    config = ModelConfig(name=str(llama_folder), lora_config=LoraConfig(r=8, alpha=16))
    loaded = ModelManager(config, device=CPU, seed=0).load()
    plain = loaded.description
    assert quantized.description["num_parameters"] == plain["num_parameters"]
    assert quantized.description["num_trainable"] == plain["num_trainable"]
    assert arithmetic_of(quantized.model) == arithmetic_of(loaded.model)


def test_a_saved_qlora_gives_the_same_logits(
    llama_folder: Path, input_ids: torch.Tensor, tmp_path: Path
) -> None:
    loaded = load(llama_folder, "4bit")
    train(loaded.model, input_ids, evaluate=False)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "lora")
    again = load_saved(tmp_path / "lora", device=CPU, model_config=ModelConfig(quantization="4bit"))
    assert quantized_layers(again.model)
    assert torch.equal(again.model(input_ids).logits, loaded.model.eval()(input_ids).logits)


def test_a_model_too_narrow_for_four_bits_on_a_cpu(llama_folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    narrow = LlamaForCausalLM(LlamaConfig(vocab_size=300, intermediate_size=64, **sizes))
    narrow.save_pretrained(llama_folder)
    with pytest.raises(ValueError, match=r"models\.width_for_4bit_on_cpu.*multiple=64.*width=32"):
        load(llama_folder, "4bit")


def test_products_have_the_format_of_the_other_weights(llama_folder: Path) -> None:
    layers: Any = quantized_layers(load(llama_folder, "4bit", dtype="bf16").model)
    assert {layer.compute_dtype for layer in layers} == {torch.bfloat16}


def test_weights_that_are_quantised_in_another_way(llama_folder: Path) -> None:
    path = llama_folder / "config.json"
    stored = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": stored}))
    with pytest.raises(ValueError, match=r"models\.already_quantized"):
        load(llama_folder, "4bit")


def test_layers_that_a_cpu_cannot_take_in_four_bits_are_named() -> None:
    sizes = {"both": (64, 32), "rows": (64, 336), "width": (336, 64), "head": (64, 33)}
    model = torch.nn.ModuleDict({name: torch.nn.Linear(*size) for name, size in sizes.items()})
    model.get_output_embeddings = lambda: model["head"]  # type: ignore[assignment]
    assert layers_not_in_blocks(model) == ["rows", "width"]


def test_a_quantisation_is_its_own_settings_and_no_other() -> None:
    four: Any = quantization_config("4bit", torch.bfloat16)
    assert (four.load_in_4bit, four.load_in_8bit) == (True, False)
    assert (four.bnb_4bit_quant_type, four.bnb_4bit_use_double_quant) == ("nf4", True)
    assert four.bnb_4bit_compute_dtype is torch.bfloat16
    eight: Any = quantization_config("8bit", torch.float32)
    assert (eight.load_in_4bit, eight.load_in_8bit) == (False, True)
    with pytest.raises(ValueError, match=r"what=quantization, name=3bit"):
        quantization_config("3bit", torch.float32)


def test_quantized_weights_are_made_plain_ones_that_compute_the_same(
    llama_folder: Path, input_ids: torch.Tensor, tmp_path: Path
) -> None:
    """A merged model consists of plain weights for other libraries, even if it is narrow."""
    quantized: Any = load(llama_folder, "4bit").model.get_base_model()  # type: ignore[operator]
    config = ModelConfig(name=str(llama_folder), quantization="4bit", lora_config=LoraConfig(r=8))
    manager = ModelManager(config, device=CPU, seed=0)
    manager.dequantizes = True
    plain: Any = manager.load().model.unload()  # type: ignore[operator]
    assert quantized_layers(plain) == []
    assert {p.dtype for p in plain.parameters()} == {torch.float32}
    plain.save_pretrained(tmp_path)
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        expected = quantized.eval()(input_ids).logits
        torch.testing.assert_close(plain.eval()(input_ids).logits, expected, atol=5e-3, rtol=0)
        assert torch.equal(again(input_ids).logits, plain(input_ids).logits)
    options = LoadOptions(CPU, torch.float32, quantization="4bit")
    narrow: Any = LlamaConfig(hidden_size=32, num_attention_heads=2)
    with pytest.raises(ValueError, match="width_for_4bit_on_cpu"):
        _placement(narrow, options)
    assert _placement(narrow, replace(options, dequantizes=True))


class Linear4bit(torch.nn.Linear):
    support_avx512bf16_for_cpu = True


def test_the_layout_for_inference_is_kept_from_quantized_layers_alone() -> None:
    model = torch.nn.ModuleList([Linear4bit(1, 1), torch.nn.Linear(1, 1)])
    model[1].support_avx512bf16_for_cpu = True
    keep_trainable_layout(model)
    assert [layer.support_avx512bf16_for_cpu for layer in model] == [False, True]


def test_experts_that_are_not_quantized_are_counted() -> None:
    experts = [torch.ones(2, 500, 100, dtype=torch.bfloat16), torch.ones(1, 50, 1000)]
    shown = "quantized_bits=4, num_weights=0.15, bits=16)"
    assert note_on_experts(experts, "4bit") == f"models.experts_not_quantized({shown}"
