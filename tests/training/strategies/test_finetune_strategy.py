"""Layer-wise learning rates, on a real small Llama."""

import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.strategies import get_training_strategy


def small_llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            tie_word_embeddings=False,
        )
    )


def rates_by_name(model: torch.nn.Module, **settings: object) -> dict[str, float]:
    strategy = get_training_strategy("finetune", TrainingConfig(**settings))
    groups = strategy.parameter_groups(model, 1.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)]: group["lr"] for group in groups for p in group["params"]}


def test_each_layer_below_the_top_learns_slower() -> None:
    rates = rates_by_name(small_llama(), layerwise_lr_decay=0.5)
    assert rates["lm_head.weight"] == 1.0
    assert rates["model.layers.1.mlp.up_proj.weight"] == 0.5
    assert rates["model.layers.0.mlp.up_proj.weight"] == 0.25
    assert rates["model.embed_tokens.weight"] == 0.125


def test_without_decay_all_learn_alike() -> None:
    assert set(rates_by_name(small_llama()).values()) == {1.0}


def test_with_a_rate_for_each_layer_matrices_alone_decay_as_ever() -> None:
    model = small_llama()
    config = TrainingConfig(layerwise_lr_decay=0.5, weight_decay=0.1)
    groups = get_training_strategy("finetune", config).parameter_groups(model, 1.0)
    decays = {(p.ndim, group["weight_decay"]) for group in groups for p in group["params"]}
    assert decays == {(2, 0.1), (1, 0.0)}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
