"""Checks for settings of block-wise training that are valid alone but contradict each other."""

from collections.abc import Iterator

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.stackwise_config import STACKWISE
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.messages import Setting, phrase


def stackwise_contradictions(
    model: ModelConfig, data: DataConfig, training: TrainingConfig
) -> Iterator[str]:
    """Yield a message, with the remedy, for each contradiction."""
    strategy = training.strategy_for(model)
    if training.mode is not None and strategy not in ("progressive", "auto"):
        yield (phrase("config.mode_with_strategy", mode=training.mode, strategy=strategy))
        return
    if strategy not in STACKWISE:
        if training.cache_activations:
            yield _no_trunk(phrase("config.strategy_trains_all_layers", strategy=strategy))
        return
    if model.lora_config is not None:
        yield (phrase("config.stacks_with_lora"))
    if model.quantization is not None:
        yield (phrase("config.stacks_with_quantized_model"))
    for name, value, default in (
        ("compile_mode", training.compile_mode, None),
        ("layerwise_lr_decay", training.layerwise_lr_decay, 1.0),
        ("unfreeze_interval", training.unfreeze_interval, None),
        ("early_stopping_patience", training.early_stopping_patience, None),
    ):
        if value != default:
            yield phrase("config.not_for_stacks", setting=Setting(f"training.{name}"))
    if training.holds_half_weights and training.mixed_precision in (False, "fp32"):
        yield (
            phrase(
                "config.half_weights_with_fp32",
                precision=training.progressive.new_stack_precision,
            )
        )
    yield from _trunks(data, training)
    yield from _losses(training)


def stackwise_costs(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """Yield a message for each setting that works, but costs more than users may expect."""
    if training.strategy_for(model) not in STACKWISE or training.local_loss != "reconstruct":
        return
    if training.trains_units_in_turn:
        yield (phrase("config.reconstruct_costs_accuracy"))


def _trunks(data: DataConfig, training: TrainingConfig) -> Iterator[str]:
    in_turn = training.trains_units_in_turn
    if training.cache_activations and not training.trunk_can_be_cached:
        why = phrase("config.all_units_train_each_step")
        if training.trunk_is_adapted:
            why = phrase("config.trunk_matrices_train")
        elif in_turn:
            why = phrase("config.layers_below_train")
        yield _no_trunk(why)
    if training.cache_activations and data.streaming:
        yield (phrase("config.cache_with_streaming"))
    quantizes = training.trunk_is_quantized
    if training.quantization_enabled and training.backbone_quantized is False:
        yield (phrase("config.backbone_both_quantized_and_not"))
    if training.qlora_progressive_enabled is False and training.qlora_strategy == "progressive":
        yield (phrase("config.progressive_qlora_disabled"))
    if quantizes and not in_turn and not training.qlora_enabled:
        yield (phrase("config.quantization_freezes_everything"))
    if quantizes and training.trunk_trains:
        yield (phrase("config.quantized_layers_keep_training"))
    if training.trunk_is_adapted and training.trunk_trains:
        yield (phrase("config.qlora_layers_keep_training"))


def _losses(training: TrainingConfig) -> Iterator[str]:
    in_turn = training.trains_units_in_turn
    if training.local_loss == "reconstruct":
        if not in_turn and training.end_to_end_scope == "rackwise":
            yield (phrase("config.reconstruct_with_one_loss"))
        if training.with_top or training.trunk_trains:
            yield (phrase("config.reconstruct_with_other_layers"))
        if training.trunk_is_adapted:
            both = phrase("config.reconstruct_and_qlora")
            yield phrase("config.settings_cannot_be_combined", settings=both)
    if training.with_top and training.strategy == "progressive":
        yield (phrase("config.top_with_progressive"))


def _no_trunk(why: str) -> str:
    return phrase("config.no_activations_to_cache", reason=why)
