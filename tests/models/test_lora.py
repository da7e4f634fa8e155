"""LoRA goes where it is asked to, wrong targets are refused, layers are ordered by name."""

from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.models.lora import (
    HEAD_LAYER,
    adapted_paths,
    apply_lora,
    count_parameters,
    layer_of,
    merge_lora,
    peft_arguments,
    target_paths,
)
from tests.training.seeing_models import llava_config, tiny_tokenizer


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


@pytest.fixture(scope="module")
def llava() -> torch.nn.Module:
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(llava_config(tiny_tokenizer("<image>")))


def mixtral() -> torch.nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    with torch.device("meta"):
        return MixtralForCausalLM(
            MixtralConfig(vocab_size=40, num_attention_heads=2, num_local_experts=2, **sizes)
        )


def test_the_layers_of_one_part_are_given_by_their_full_names(llava: torch.nn.Module) -> None:
    within = "model.language_model"
    targets = LoraConfig(r=3, alpha=5, dropout=0.25, use_rslora=True, target_modules=["q_proj"])
    assert peft_arguments(llava, targets, within) == {
        **{"r": 3, "lora_alpha": 5, "lora_dropout": 0.25, "fan_in_fan_out": False},
        **{"use_dora": False, "use_rslora": True, "modules_to_save": None},
        "target_modules": [f"{within}.layers.{k}.self_attn.q_proj" for k in (0, 1)],
    }
    everywhere = peft_arguments(llava, LoraConfig(), in_full=["multi_modal_projector"])
    assert everywhere["modules_to_save"] == ["multi_modal_projector"]
    names = everywhere["target_modules"]
    assert names == sorted(target_paths(llava, "all-linear") - set(PROJECTOR_LAYERS))
    assert any("vision_tower" in name for name in names)
    with pytest.raises(ValueError, match=r"lora_targets_outside_language\(targets=\['fc1'\]\)"):
        peft_arguments(llava, LoraConfig(target_modules=["fc1"]), within)


PROJECTOR_LAYERS = [f"model.multi_modal_projector.linear_{k}" for k in (1, 2)]


@pytest.mark.parametrize(
    ("model", "targets", "expected"),
    [
        (tiny_llama, "all-linear", {"target_modules": "all-linear", "fan_in_fan_out": False}),
        (tiny_gpt2, ["c_attn"], {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
        (
            mixtral,
            ["o_proj", "q_proj", "down_proj"],
            {
                "target_modules": [f"model.layers.0.self_attn.{n}_proj" for n in "oq"],
                "target_parameters": ["model.layers.0.mlp.experts.down_proj"],
                "modules_to_save": None,
            },
        ),
        (mixtral, ["q_proj"], {"target_parameters": None}),
    ],
)
def test_targets_are_given_to_peft_by_name_if_it_understands_the_names(
    model: Any, targets: Any, expected: dict[str, Any]
) -> None:
    found = peft_arguments(model(), LoraConfig(target_modules=targets))
    assert expected.items() <= found.items()
    full = peft_arguments(mixtral(), LoraConfig(target_modules=["q_proj"]), None, ["lm_head"])
    assert full["modules_to_save"] == ["lm_head"]


def test_a_refused_target_is_named_beside_all_that_there_are() -> None:
    model = tiny_llama()
    there = "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
    for names, problem in (
        (["q_proj", "w_proj", "x_proj"], "models.not_a_linear_layer(layer=w_proj)"),
        ([], "models.lora_targets_empty()"),
    ):
        with pytest.raises(ValueError, match="lora_targets_invalid") as refused:
            apply_lora(model, LoraConfig(target_modules=names))
        shown = f"problem={problem}, name=LlamaForCausalLM, layers={there})"
        assert str(refused.value) == f"models.lora_targets_invalid({shown}"
    with pytest.raises(ValueError, match="lora_option_on_experts") as refused:
        peft_arguments(mixtral(), LoraConfig(dropout=0.5))
    shown = "layers=down_proj, gate_up_proj, model=MixtralForCausalLM)"
    assert str(refused.value).endswith(f"name=model.lora_config.dropout, {shown}")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("target", ["lm_head", "q_proj"])
def test_a_merged_model_computes_what_the_lora_did(tied: bool, target: str) -> None:
    model: Any = tiny_llama()
    model.config.tie_word_embeddings = tied
    if tied:
        model.tie_weights()
    embeddings = model.get_input_embeddings().weight.detach().clone()
    tuned = apply_lora(model, LoraConfig(r=2, target_modules=[target]))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
        ids = torch.arange(8).unsqueeze(0)
        expected = tuned(ids).logits
        assert (expected - model(ids).logits).abs().max() == 0, "LoRA adds to the layers"
        merged: Any = merge_lora(tuned)
        torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(merged.get_input_embeddings().weight, embeddings)
    is_shared = merged.lm_head.weight is merged.get_input_embeddings().weight
    assert is_shared is merged.config.tie_word_embeddings is (tied and target == "q_proj")
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]


def test_what_is_no_number_is_not_merged() -> None:
    tuned = apply_lora(tiny_llama(), LoraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        next(p for n, p in tuned.named_parameters() if "lora_B" in n).fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN"):
        merge_lora(tuned)


def test_a_part_is_found_by_its_whole_name() -> None:
    model = mixtral()
    everywhere = target_paths(model, "all-linear")
    assert {path.rpartition(".")[2] for path in everywhere} >= {"q_proj", "down_proj"}
    assert target_paths(model, "all-linear", within="model") == everywhere
    experts = target_paths(model, "all-linear", within="model.layers.0.mlp")
    assert experts == {path for path in everywhere if ".mlp." in path}
    for within in ("mode", "other", "model.layers.1"):
        assert target_paths(model, "all-linear", within=within) == set()
