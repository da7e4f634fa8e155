"""LoRA reaches the experts of mixtures of experts, whose weights have three dimensions; the router
stays, or trains in full."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.family_models import save_language_model
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.models.fitting import check_same_lora
from infrastructure.models.flops import arithmetic_of
from infrastructure.models.lora import (
    adapted_paths,
    apply_lora,
    count_parameters,
    expert_parameters,
    target_paths,
)
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.trainable_state import trainable_state
from infrastructure.optimization.optimizer_memory import optimizer_state_bytes

IDS = torch.arange(3, 19).unsqueeze(0)
NUM_EXPERTS = 4
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def mixtral() -> torch.nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=NUM_EXPERTS))


def qwen_with_a_dense_layer() -> torch.nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SHAPE,
            moe_intermediate_size=24,
            head_dim=16,
            num_experts=NUM_EXPERTS,
            mlp_only_layers=[0],
        )
    )


def gpt_oss() -> torch.nn.Module:
    from transformers import GptOssConfig, GptOssForCausalLM

    return GptOssForCausalLM(GptOssConfig(**SHAPE, head_dim=16, num_local_experts=NUM_EXPERTS))


Make = Callable[[], torch.nn.Module]
MODELS = [mixtral, qwen_with_a_dense_layer, gpt_oss]


def seeded(make: Make) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def tuned(make: Make, **lora: Any) -> torch.nn.Module:
    return apply_lora(seeded(make), LoraConfig(r=2, alpha=4, **lora))


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    model(input_ids=IDS, labels=IDS).loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model.eval()(input_ids=IDS).logits
    return logits


@pytest.mark.parametrize("make", MODELS)
def test_all_linear_reaches_every_expert_and_not_the_router(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = tuned(make)
    plain = seeded(make)
    expected = target_paths(plain, "all-linear")
    experts = expert_parameters(plain)
    assert set(experts) < expected
    assert len(experts) == (2 if make is qwen_with_a_dense_layer else 4)
    assert adapted_paths(model.get_base_model()) == expected  # type: ignore[operator]
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    assert not any("router" in name or ".gate." in name for name in trained)
    matrices = sum(
        2 * sum(plain.get_parameter(f"{path}.weight").shape) for path in expected - set(experts)
    ) + sum(2 * NUM_EXPERTS * sum(plain.get_parameter(path).shape[1:]) for path in experts)
    assert count_parameters(model).trainable == matrices
    assert gradients(model).keys() == trained


@pytest.mark.parametrize("make", MODELS)
def test_saved_loaded_and_merged_it_is_the_same(make: Make, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = tuned(make)
    with torch.no_grad():
        for number, tensor in enumerate(trainable_state(model).values()):
            generator = torch.Generator().manual_seed(number)
            tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    expected = logits(model)
    assert (expected - logits(seeded(make))).abs().max() > 1e-3
    model.save_pretrained(tmp_path, save_embedding_layers=False)  # type: ignore[operator]
    loaded = peft.PeftModel.from_pretrained(seeded(make), str(tmp_path))
    assert torch.equal(logits(loaded), expected)
    check_same_lora(loaded, LoraConfig(r=2, alpha=4), "folder")
    with pytest.raises(ValueError, match=r"models\.lora_settings_differ"):
        check_same_lora(loaded, LoraConfig(r=2, alpha=4, target_modules=["q_proj"]), "folder")
    torch.testing.assert_close(logits(loaded.merge_and_unload()), expected, atol=1e-5, rtol=1e-4)


def test_a_token_meets_two_of_four_experts() -> None:
    model = seeded(mixtral).requires_grad_(False)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    of_experts = sum(sizes[name] for name in expert_parameters(model))
    looked_up = sizes["model.embed_tokens.weight"]
    used = sum(sizes.values()) - looked_up - of_experts / 2
    assert arithmetic_of(model).per_token == 4 * used


def test_experts_are_named_as_their_weights_or_left_out() -> None:
    named = tuned(mixtral, target_modules=["q_proj", "down_proj"])
    found = adapted_paths(named.get_base_model())  # type: ignore[operator]
    assert {path.rpartition(".")[2] for path in found} == {"q_proj", "down_proj"}
    without = tuned(mixtral, target_modules=["q_proj"], dropout=0.1)
    found = adapted_paths(without.get_base_model())  # type: ignore[operator]
    assert {path.rpartition(".")[2] for path in found} == {"q_proj"}
    with pytest.raises(ValueError, match=r"models\.lora_option_on_experts.*dropout"):
        tuned(mixtral, dropout=0.1)
    with pytest.raises(ValueError, match=r"models\.lora_option_on_experts.*use_dora"):
        tuned(gpt_oss, use_dora=True)


@pytest.mark.parametrize("make", MODELS)
def test_what_the_optimizer_will_hold_is_known_before_its_first_step(make: Make) -> None:
    model = tuned(make)
    predicted = optimizer_state_bytes(adamw, model)
    optimizer = adamw(model)
    gradients(model)
    optimizer.step()
    held = [t for state in optimizer.state.values() for t in state.values()]
    assert predicted == sum(t.numel() * t.element_size() for t in held)
    assert predicted > 8 * count_parameters(model).trainable  # two moments of four bytes


def adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for _, p in module.named_parameters() if p.requires_grad])


def test_experts_that_stay_in_32_bits_beside_4_are_named(tmp_path: Path) -> None:
    config = ModelConfig(
        name=str(save_language_model("mixtral", tmp_path / "model")),
        quantization="4bit",
        lora_config=LoraConfig(r=4),
    )
    loaded = ModelManager(config, device=torch.device("cpu"), seed=0).load()
    (note,) = loaded.notes
    assert "models.experts_not_quantized(quantized_bits=4," in note
