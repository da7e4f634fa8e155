"""Settings that cannot be combined with an extension that adds weights to the model."""

from collections.abc import Collection, Iterator

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.stackwise_config import STACKWISE
from infrastructure.config.sections.training_config import SFT, TrainingConfig
from infrastructure.core.messages import Setting, phrase


def added_weights_refusals(
    names: Collection[str], model: ModelConfig, training: TrainingConfig
) -> Iterator[str]:
    """Yield a message, with the remedy, for each setting that is incompatible with added weights.

    Args:
        names: the enabled extensions that add weights.
    """
    if not names:
        return
    key = Setting("training.enabled_extensions", ",".join(names))
    if training.method != SFT:
        yield (phrase("config.added_weights_with_trl", key=key, method=training.method))
    if training.compile_mode is not None:
        yield (phrase("config.added_weights_with_compile", key=key))
    yield from _in_a_model(key, model, training)


def on_several_processes(names: Collection[str], num_processes: object) -> str:
    """Return the message that these extensions, which add weights, train in one process only."""
    return phrase("config.added_weights_on_processes", count=num_processes, names=", ".join(names))


def saved_weights_refusals(
    names: Collection[str], model: ModelConfig, training: TrainingConfig
) -> Iterator[str]:
    """Yield such messages for added weights in a saved model whose extensions are not enabled.

    Args:
        names: the kinds of these weights.
    """
    if names:
        yield from _in_a_model(f"{', '.join(names)} in model {model.name}", model, training)


def _in_a_model(key: str, model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    if model.backend == "unsloth":
        yield (phrase("config.added_weights_with_unsloth", key=key))
    if training.strategy_for(model) in STACKWISE:
        yield (
            phrase(
                "config.added_weights_with_stacks", key=key, strategy=training.strategy_for(model)
            )
        )
    if training.time_step_masking:
        yield (phrase("config.added_weights_with_masking", key=key))
    if model.quantization_aware is not None:
        yield (phrase("config.added_weights_with_qat", key=key))
    if training.mixed_precision == "fp8":
        yield phrase("config.added_weights_with_fp8", key=key)
