"""The values that "auto" stands for, for settings that depend only on the configuration."""

import math
from pathlib import Path

from infrastructure.config.base import ConfigurationError
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig

# New weights, LoRA, full fine-tuning: common starting points for AdamW.
SCRATCH_LEARNING_RATE = 1e-3
# Suits the default embedded model; for another width the rate is scaled by 1 / width.
EMBEDDED_LEARNING_RATE, EMBEDDED_WIDTH = 1.5e-3, 128
LORA_LEARNING_RATE = 2e-4
FULL_LEARNING_RATE = 2e-5
SCRATCH_EPOCHS = 4
FINETUNE_EPOCHS = 3


def trains_from_scratch(model: ModelConfig) -> bool:
    """Return whether the model is the built-in one, which starts from new weights."""
    return model.name == "embedded"


def trains_lora(model: ModelConfig) -> bool:
    """Return whether a LoRA is trained: LoRA is configured, or the model is a saved LoRA."""
    return model.lora_config is not None or is_lora_folder(model.name)


def is_lora_folder(name: str) -> bool:
    """Return whether a name is the path of a saved LoRA, or of a run that trained a LoRA."""
    folder = Path(name).expanduser()
    return any((place / "adapter_config.json").is_file() for place in (folder, folder / "final"))


def learning_rate_for(training: TrainingConfig, model: ModelConfig, from_scratch: bool) -> float:
    """Return the configured peak learning rate; for "auto", the default for this kind of run."""
    if training.learning_rate != "auto":
        return training.learning_rate
    if trains_lora(model):
        return LORA_LEARNING_RATE
    if trains_from_scratch(model):
        return EMBEDDED_LEARNING_RATE * EMBEDDED_WIDTH / model.embedded.hidden_size
    return SCRATCH_LEARNING_RATE if from_scratch else FULL_LEARNING_RATE


def added_learning_rate_for(training: TrainingConfig, learning_rate: float) -> float:
    """Return the peak learning rate for new weights that extensions add to the model.

    Args:
        learning_rate: the peak learning rate of the model's own weights.
    """
    if training.extension_learning_rate != "auto":
        return training.extension_learning_rate
    return max(SCRATCH_LEARNING_RATE, learning_rate)


def num_epochs_for(
    training: TrainingConfig, from_scratch: bool, num_steps_per_epoch: int, num_phases: int = 1
) -> int:
    """Return the configured epochs per phase; for "auto", as many as `max_steps` needs.

    Without `max_steps`, "auto" is `SCRATCH_EPOCHS` or `FINETUNE_EPOCHS`.

    Args:
        num_phases: the number of phases that share `max_steps`. If there are several, the
            number of epochs is rounded so that no phase is cut short.
    """
    if training.num_epochs != "auto":
        return training.num_epochs
    if training.max_steps is not None and num_phases > 1:
        return max(1, training.max_steps // (num_phases * num_steps_per_epoch))
    if training.max_steps is not None:
        return math.ceil(training.max_steps / num_steps_per_epoch)
    return SCRATCH_EPOCHS if from_scratch else FINETUNE_EPOCHS


def attention_for(model: ModelConfig, training: TrainingConfig) -> str:
    """Return the attention implementation that either section requests, or "auto".

    Raises:
        ConfigurationError: if the two sections request different implementations.
    """
    wanted = {None: "auto", True: "sdpa", False: "eager"}[training.memory_efficient_attention]
    if "auto" in (wanted, model.attention):
        return model.attention if wanted == "auto" else wanted
    if (wanted == "eager") != (model.attention == "eager"):
        given = str(training.memory_efficient_attention).lower()
        raise ConfigurationError(
            "config.attention_settings_disagree",
            given=given,
            wanted=wanted,
            attention=model.attention,
        )
    return model.attention
