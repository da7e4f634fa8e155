"""LoRA goes where it is asked to, wrong targets are refused, layers are ordered by name."""

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.models.lora import (
    HEAD_LAYER,
    adapted_paths,
    apply_lora,
    count_parameters,
    layer_of,
    target_paths,
)


def tiny_llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    )


def tiny_gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    )


def test_only_the_lora_matrices_train() -> None:
    model = tiny_llama()
    num_base = count_parameters(model).total
    tuned = apply_lora(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    trained = {name for name, p in tuned.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * 2
    assert all("lora_" in name for name in trained)
    counts = count_parameters(tuned)
    # r * (inputs + outputs) for q (32 -> 32) and v (32 -> 16) in two layers
    assert counts.trainable == 2 * 4 * ((32 + 32) + (32 + 16))
    assert counts.total == num_base + counts.trainable


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_all_linear_means_every_linear_layer_but_the_head(make: object) -> None:
    model = make()  # type: ignore[operator]
    expected = target_paths(model, "all-linear")
    tuned = apply_lora(model, LoraConfig(r=2))
    assert adapted_paths(tuned.get_base_model()) == expected  # type: ignore[operator]
    assert target_paths(tuned.get_base_model(), "all-linear") == expected  # type: ignore[operator]
    assert not any("lm_head" in path for path in expected)


def test_lora_learns_on_transposed_layers() -> None:
    tuned = apply_lora(tiny_gpt2(), LoraConfig(r=2, target_modules=["c_attn"]))
    ids = torch.arange(8).unsqueeze(0)
    tuned(input_ids=ids, labels=ids).loss.backward()
    gradients = [p.grad for n, p in tuned.named_parameters() if "lora_B" in n]
    assert gradients
    assert all(g is not None and g.abs().sum() > 0 for g in gradients)


@pytest.mark.parametrize("targets", [["query"], ["q_proj", "w_proj"], ["proj"], []])
def test_wrong_targets_are_refused_even_beside_right_ones(targets: list[str]) -> None:
    with pytest.raises(ValueError, match=r"models\.lora_targets_invalid.*name=LlamaForCausalLM"):
        apply_lora(tiny_llama(), LoraConfig(target_modules=targets))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.embed_tokens.weight", 0),
        ("model.layers.0.self_attn.q_proj.weight", 1),
        ("model.layers.11.mlp.experts.3.down_proj.weight", 12),
        ("base_model.model.model.layers.1.mlp.up_proj.lora_A.default.weight", 2),
        ("base_model.model.model.embed_tokens.lora_embedding_A.default", 0),
        ("base_model.model.lm_head.modules_to_save.default.weight", HEAD_LAYER),
        ("_orig_mod.model.layers.1.input_layernorm.weight", 2),
        ("model.norm.weight", HEAD_LAYER),
        ("lm_head.weight", HEAD_LAYER),
        ("transformer.wte.weight", 0),
        ("transformer.wpe.weight", 0),
        ("transformer.h.3.attn.c_attn.bias", 4),
        ("transformer.ln_f.weight", HEAD_LAYER),
        ("gpt_neox.embed_in.weight", 0),
        ("embed_out.weight", HEAD_LAYER),
        ("model.score.weight", HEAD_LAYER),
        ("transformer.output.embedding.weight", HEAD_LAYER),
    ],
)
def test_layer_of(name: str, layer: int) -> None:
    assert layer_of(name) == layer


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_every_layer_of_a_real_model_is_found(make: object) -> None:
    model = make()  # type: ignore[operator]
    assert {layer_of(name) for name, _ in model.named_parameters()} == {0, 1, 2, HEAD_LAYER}
