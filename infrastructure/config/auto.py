"""What "auto" means where no machine and no measurement is needed to say it."""

import math
from pathlib import Path

from infrastructure.config.base import ConfigurationError
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig

# From scratch, LoRA, all weights: common starting points for AdamW.
SCRATCH_LEARNING_RATE = 1e-3
# What suits the default embedded model; a wider one learns slower, in proportion to its width.
EMBEDDED_LEARNING_RATE, EMBEDDED_WIDTH = 1.5e-3, 128
LORA_LEARNING_RATE = 2e-4
FULL_LEARNING_RATE = 2e-5
SCRATCH_EPOCHS = 4
FINETUNE_EPOCHS = 3


def trains_from_scratch(model: ModelConfig) -> bool:
    """Whether the model starts from new weights; a registered model's builder may know better."""
    return model.name == "embedded"


def trains_lora(model: ModelConfig) -> bool:
    """Whether a LoRA trains: one that is asked for, or a saved one that the model is."""
    return model.lora_config is not None or is_lora_folder(model.name)


def is_lora_folder(name: str) -> bool:
    """Whether a name is the folder of a LoRA, or of a run that has trained one."""
    folder = Path(name).expanduser()
    return any((place / "adapter_config.json").is_file() for place in (folder, folder / "final"))


def learning_rate_for(training: TrainingConfig, model: ModelConfig, from_scratch: bool) -> float:
    """The peak learning rate: the one given, or for "auto" the usual one of its kind."""
    if training.learning_rate != "auto":
        return training.learning_rate
    if trains_lora(model):
        return LORA_LEARNING_RATE
    if trains_from_scratch(model):
        return EMBEDDED_LEARNING_RATE * EMBEDDED_WIDTH / model.embedded.hidden_size
    return SCRATCH_LEARNING_RATE if from_scratch else FULL_LEARNING_RATE


def added_learning_rate_for(training: TrainingConfig, learning_rate: float) -> float:
    """The peak learning rate of weights that extensions add, which begin new.

    Args:
        learning_rate: of the model's own weights.
    """
    if training.extension_learning_rate != "auto":
        return training.extension_learning_rate
    return max(SCRATCH_LEARNING_RATE, learning_rate)


def num_epochs_for(
    training: TrainingConfig, from_scratch: bool, num_steps_per_epoch: int, num_phases: int = 1
) -> int:
    """Passes over the data, in each phase: the number given, or for "auto" as many as `max_steps`
    needs.

    Args:
        num_phases: that share `max_steps`; none of them is cut off then.
    """
    if training.num_epochs != "auto":
        return training.num_epochs
    if training.max_steps is not None and num_phases > 1:
        return max(1, training.max_steps // (num_phases * num_steps_per_epoch))
    if training.max_steps is not None:
        return math.ceil(training.max_steps / num_steps_per_epoch)
    return SCRATCH_EPOCHS if from_scratch else FINETUNE_EPOCHS


def attention_for(model: ModelConfig, training: TrainingConfig) -> str:
    """The attention implementation that both sections ask for; "auto" where neither does.

    Raises:
        ConfigurationError: they ask for different ones.
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
