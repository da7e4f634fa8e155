"""Settings of stack-wise training that are right by themselves and cannot hold together."""

from collections.abc import Iterator

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.stackwise_config import STACKWISE
from infrastructure.config.sections.training_config import TrainingConfig


def stackwise_contradictions(
    model: ModelConfig, data: DataConfig, training: TrainingConfig
) -> Iterator[str]:
    """A sentence, with the remedy, for each contradiction."""
    strategy = training.strategy_for(model)
    if training.mode is not None and strategy not in ("progressive", "auto"):
        yield (
            f"training.mode {training.mode} trains a unit of layers after the other, and"
            f" training.strategy {strategy} does not: leave one of them out"
        )
        return
    if strategy not in STACKWISE:
        if training.cache_activations:
            yield _no_trunk(f"training.strategy {strategy} trains all layers")
        return
    if model.lora_config is not None:
        yield (
            "stack-wise training trains the weights of the layers, and model.lora_config LoRA"
            " matrices instead: leave it out, or give training.qlora_enabled"
        )
    if model.quantization is not None:
        yield (
            "stack-wise training trains weights that model.quantization would make untrainable:"
            " leave it out, or give training.quantization_enabled"
        )
    for name, value, default in (
        ("compile_mode", training.compile_mode, None),
        ("layerwise_lr_decay", training.layerwise_lr_decay, 1.0),
        ("unfreeze_interval", training.unfreeze_interval, None),
        ("early_stopping_patience", training.early_stopping_patience, None),
    ):
        if value != default:
            yield f"training.{name} is not for stack-wise training: leave it out"
    if training.holds_half_weights and training.mixed_precision in (False, "fp32"):
        yield (
            f"training.progressive.new_stack_precision {training.progressive.new_stack_precision}"
            " holds weights in 16 bits, and training.mixed_precision fp32 computes in 32: leave one"
            " of them out"
        )
    yield from _trunks(data, training)
    yield from _losses(training)


def stackwise_costs(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """A sentence for what does what it says, and costs more than it may seem to."""
    if training.strategy_for(model) not in STACKWISE or training.local_loss != "reconstruct":
        return
    if training.trains_units_in_turn:
        yield (
            "training.local_loss reconstruct: only the last unit learns from the data's answers,"
            " the others learn to keep features. Measured, fine-tuning ended with a held-out loss"
            " a third higher or more; training.strategy end_to_end with training.end_to_end_scope"
            " stackwise and two stacks lost less"
        )


def _trunks(data: DataConfig, training: TrainingConfig) -> Iterator[str]:
    in_turn = training.trains_units_in_turn
    if training.cache_activations and not training.trunk_can_be_cached:
        why = "all units train in each step"
        if training.trunk_is_adapted:
            why = "low-rank matrices of the trunk train (qlora), so that its output changes"
        elif in_turn:
            why = "the layers below are run with gradients, or train themselves"
        yield _no_trunk(why)
    if training.cache_activations and data.streaming:
        yield (
            "training.cache_activations needs all examples beforehand, and data.streaming reads"
            " them while it goes on: switch one of them off"
        )
    quantizes = training.trunk_is_quantized
    if training.quantization_enabled and training.backbone_quantized is False:
        yield (
            "training.quantization_enabled stores the finished layers quantised, and"
            " training.backbone_quantized false keeps them as they are: leave one of them out"
        )
    if training.qlora_progressive_enabled is False and training.qlora_strategy == "progressive":
        yield (
            "training.qlora_strategy progressive adds matrices with each new stack, and"
            " training.qlora_progressive_enabled false adds none: leave one of them out"
        )
    if quantizes and not in_turn and not training.qlora_enabled:
        yield (
            "training.quantization_enabled freezes the layers, and nothing would train: give"
            " training.qlora_enabled, too, or train a unit after the other (training.mode)"
        )
    if quantizes and training.trunk_trains:
        yield (
            "training.quantization_enabled freezes the finished layers, and here they go on"
            " training: leave one of them out"
        )
    if training.trunk_is_adapted and training.trunk_trains:
        yield (
            "training.qlora_enabled trains low-rank matrices beside frozen layers, and here the"
            " layers themselves go on training: leave one of them out"
        )


def _losses(training: TrainingConfig) -> Iterator[str]:
    in_turn = training.trains_units_in_turn
    if training.local_loss == "reconstruct":
        if not in_turn and training.end_to_end_scope == "rackwise":
            yield (
                "training.local_loss reconstruct is for units with losses of their own, and"
                " training.end_to_end_scope rackwise has one loss: give stackwise"
            )
        if training.with_top or training.trunk_trains:
            yield (
                "training.local_loss reconstruct trains a unit without the layers around it:"
                " leave out training.with_top, training.mode fused and growth once"
            )
        if training.trunk_is_adapted:
            both = "training.local_loss reconstruct and training.qlora_enabled"
            yield f"{both}: leave one of them out"
    if training.with_top and training.strategy == "progressive":
        yield (
            "training.with_top needs the layers on top from the start, and training.strategy"
            " progressive adds them one after the other: give training.mode instead"
        )


def _no_trunk(why: str) -> str:
    return f"training.cache_activations: {why}; there is nothing to keep: leave it out"
