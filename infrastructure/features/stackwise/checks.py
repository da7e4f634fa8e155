"""Checks for contradictory settings of block-wise training, and advice on costly ones."""

from collections.abc import Callable, Iterator
from typing import Any

from infrastructure.core.messages import phrase
from infrastructure.features.stackwise.config import STRATEGIES, is_stackwise

_STACKWISE = f"strategy={'|'.join(STRATEGIES)}"

# Rows as in `config.merging.contradictions`.
CONTRADICTIONS = (
    ("stackwise.mode_with_strategy", "training.mode", "not strategy=progressive"),
    (
        "stackwise.cache_with_all_layers",
        "training.cache_activations",
        f"not {_STACKWISE}",
    ),
    ("stackwise.stacks_with_lora", "by_stacks", "model.lora_config"),
    ("stackwise.stacks_with_quantized_model", "by_stacks", "model.quantization"),
    ("stackwise.stacks_with_compile", "by_stacks", "training.compile_mode"),
    ("stackwise.stacks_with_lr_decay", "by_stacks", "not training.layerwise_lr_decay=1.0"),
    ("stackwise.stacks_with_early_stopping", "by_stacks", "training.early_stopping_patience"),
    (
        "stackwise.half_weights_with_fp32",
        "by_stacks",
        "training.holds_half_weights",
        "training.progressive.new_stack_precision",
        "training.mixed_precision=false|fp32",
    ),
    (
        "stackwise.cache_with_qlora",
        "by_stacks",
        "training.cache_activations",
        "training.trunk_is_adapted",
    ),
    (
        "stackwise.cache_with_changing_layers",
        "by_stacks",
        "training.cache_activations",
        "training.trains_units_in_turn",
        "training.trunk_trains",
        "not training.trunk_is_adapted",
    ),
    (
        "stackwise.cache_with_all_units",
        "by_stacks",
        "training.cache_activations",
        "not training.trains_units_in_turn",
    ),
    ("stackwise.cache_with_streaming", "by_stacks", "training.cache_activations", "data.streaming"),
    (
        "stackwise.backbone_both_quantized_and_not",
        "by_stacks",
        "training.quantization_enabled",
        "training.backbone_quantized=false",
    ),
    (
        "stackwise.progressive_qlora_disabled",
        "by_stacks",
        "training.qlora_strategy=progressive",
        "training.qlora_progressive_enabled=false",
    ),
    (
        "stackwise.quantization_freezes_everything",
        "by_stacks",
        "training.trunk_is_quantized",
        "not training.trains_units_in_turn",
        "not training.qlora_enabled",
    ),
    (
        "stackwise.quantized_layers_keep_training",
        "by_stacks",
        "training.trunk_is_quantized",
        "training.trunk_trains",
    ),
    (
        "stackwise.qlora_layers_keep_training",
        "by_stacks",
        "training.trunk_is_adapted",
        "training.trunk_trains",
    ),
    (
        "stackwise.reconstruct_with_one_loss",
        "by_stacks",
        "training.local_loss=reconstruct",
        "not training.trains_units_in_turn",
        "training.end_to_end_scope=rackwise",
    ),
    (
        "stackwise.reconstruct_with_trained_layers",
        "by_stacks",
        "training.local_loss=reconstruct",
        "training.trunk_trains",
    ),
    (
        "stackwise.reconstruct_with_qlora",
        "by_stacks",
        "training.local_loss=reconstruct",
        "training.trunk_is_adapted",
    ),
)
ADDED_WEIGHTS = (
    ("stackwise.added_weights_with_stacks", _STACKWISE),
    ("stackwise.added_weights_with_masking", "training.time_step_masking"),
)


def by_stacks(config: Any) -> bool:
    """Return whether training is block-wise, and neither `mode` nor `strategy` contradicts it."""
    name = config.training.strategy_for(config.model)
    is_other = config.training.mode is not None and name != "progressive"
    return is_stackwise(config) and not is_other


def advice(config: Any, is_given: Callable[[str], bool]) -> Iterator[str]:
    """Yield a message for each block-wise setting whose cost or meaning may surprise the user.

    Args:
        is_given: returns whether the user set the setting with a canonical key.
    """
    training = config.training
    is_reconstructed = training.local_loss == "reconstruct" and training.trains_units_in_turn
    if is_stackwise(config) and is_reconstructed:
        yield phrase("stackwise.reconstruct_costs_accuracy")
    is_chosen = is_given("training.mode") or is_given("training.strategy")
    if training.qlora_enabled and not is_chosen:
        yield phrase("stackwise.qlora_of_block_wise_training")
