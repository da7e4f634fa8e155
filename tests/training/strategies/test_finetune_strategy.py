"""Layer-wise learning rates and gradual unfreezing, on a real small Llama."""

from contextlib import nullcontext

import pytest
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


def phases_of(model: torch.nn.Module, num_epochs: int, interval: int | None) -> list[object]:
    config = TrainingConfig(unfreeze_interval=interval)
    return list(get_training_strategy("finetune", config).phases(model, num_epochs))


def test_layers_join_from_the_top() -> None:
    model = small_llama()
    phases = phases_of(model, num_epochs=9, interval=2)
    assert [phase.num_epochs for phase in phases] == [2, 2, 2, 3]
    sizes = [len(phase.parameters) for phase in phases]
    assert sizes == sorted(sizes)
    assert "lm_head.weight" in phases[0].parameters
    assert "model.layers.1.mlp.up_proj.weight" not in phases[0].parameters
    assert "model.layers.1.mlp.up_proj.weight" in phases[1].parameters
    assert phases[-1].parameters == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("num_epochs", [1, 2, 3, 5, 8])
def test_the_epochs_of_all_phases_add_up(num_epochs: int) -> None:
    assert sum(p.num_epochs for p in phases_of(small_llama(), num_epochs, 2)) == num_epochs


def test_without_an_interval_there_is_one_phase() -> None:
    assert len(phases_of(small_llama(), 3, None)) == 1


def test_with_a_rate_for_each_layer_matrices_alone_decay_as_ever() -> None:
    model = small_llama()
    config = TrainingConfig(layerwise_lr_decay=0.5, weight_decay=0.1)
    groups = get_training_strategy("finetune", config).parameter_groups(model, 1.0)
    decays = {(p.ndim, group["weight_decay"]) for group in groups for p in group["params"]}
    assert decays == {(2, 0.1), (1, 0.0)}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_frozen_layer_has_no_phase_of_its_own() -> None:
    model = small_llama()
    model.model.layers[1].requires_grad_(False)
    phases = phases_of(model, num_epochs=9, interval=2)
    assert [phase.num_epochs for phase in phases] == [2, 2, 5]
    assert not any("layers.1." in name for name in phases[-1].parameters)


@pytest.mark.parametrize(("total_steps", "is_enough"), [(30, False), (31, True), (0, False)])
def test_each_layer_must_have_trained(total_steps: int, is_enough: bool) -> None:
    """Four groups of layers; one joins every two epochs of five steps."""
    strategy = get_training_strategy("finetune", TrainingConfig(unfreeze_interval=2))
    strategy.phases(small_llama(), 9)
    strategy.steps_per_epoch = 5
    never = rf"layers_never_unfrozen\(interval=2, total_steps={total_steps}, steps_per_epoch=5"
    with nullcontext() if is_enough else pytest.raises(ValueError, match=never):
        strategy.check_length(total_steps)
