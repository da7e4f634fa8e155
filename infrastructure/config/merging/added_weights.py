"""What cannot be together with an extension that adds weights to the model."""

from collections.abc import Collection, Iterator

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.stackwise_config import STACKWISE
from infrastructure.config.sections.training_config import SFT, TrainingConfig


def added_weights_refusals(
    names: Collection[str], model: ModelConfig, training: TrainingConfig
) -> Iterator[str]:
    """A sentence, with the remedy, for each setting that weights of extensions cannot go with.

    Args:
        names: the enabled extensions that add weights.
    """
    if not names:
        return
    key = f"training.enabled_extensions {', '.join(names)}"
    if training.method != SFT:
        yield (
            f"{key} adds weights to the model, which TRL's trainers (training.method ="
            f" {training.method}) neither train nor save: leave it out, or train with method sft"
        )
    if training.compile_mode is not None:
        yield (
            f"{key} changes while it is read, which torch.compile would not see: leave"
            " training.compile_mode out"
        )
    yield from _in_a_model(key, model, training)


def on_several_processes(names: Collection[str], num_processes: object) -> str:
    """Why extensions of these names, which add weights, train in one process only."""
    return (
        f"num_processes = {num_processes}: {', '.join(names)} of training.enabled_extensions may"
        " learn besides by gradients, which are all that processes share: give num_processes = 1,"
        " or leave it out"
    )


def saved_weights_refusals(
    names: Collection[str], model: ModelConfig, training: TrainingConfig
) -> Iterator[str]:
    """The same for weights that the model was saved with, whose extensions are not enabled.

    Args:
        names: the kinds of those weights.
    """
    if names:
        yield from _in_a_model(f"{', '.join(names)} in model {model.name}", model, training)


def _in_a_model(key: str, model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    if model.backend == "unsloth":
        yield (
            f"{key} hangs on layers that model.backend unsloth has patched: set model.backend"
            " transformers"
        )
    if training.strategy_for(model) in STACKWISE:
        yield (
            f"{key} hangs on a whole model, and training.strategy"
            f" {training.strategy_for(model)} trains a stack of layers at a time: train with"
            " strategy standard or finetune"
        )
    if training.time_step_masking:
        yield (
            f"{key} reads what comes before a token, and training.time_step_masking hides tokens"
            " in both directions: leave one of them out"
        )
    if model.quantization_aware is not None:
        yield (
            f"{key}: model.quantization_aware saves a second, rounded model, which cannot hold"
            " weights of extensions: leave one of them out"
        )
    if training.mixed_precision == "fp8":
        yield f"{key}: training.mixed_precision fp8 has no such layers: give bf16"
