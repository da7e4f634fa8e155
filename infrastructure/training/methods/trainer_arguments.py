"""Translation of Temper's configuration to TRL's arguments.

`settings_table.SETTINGS` lists the settings that become arguments. A test checks that this module
and that table agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from infrastructure.config.auto import trains_lora
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.optimization.gpu_capability import AMPERE
from infrastructure.training.core.precision import choose_precision
from infrastructure.training.methods.settings_table import OPTIMIZERS, SCHEDULES
from infrastructure.training.strategies.optimizers import BETAS

LORA_FACTOR = 10  # times TRL's default learning rate, as TRL's documentation advises for adapters
# Methods that take `max_length`. Both TRL versions in the table of `method_table` have them.
WITH_LENGTH = ("dpo", "kto", "orpo", "reward")


@dataclass(frozen=True)
class Defaults:
    """The default values of TRL's configuration, which `auto` settings use.

    Attributes:
        learning_rate: for full fine-tuning.
    """

    learning_rate: float
    num_epochs: float
    num_generations: int | None


def defaults_of(config_class: type) -> Defaults:
    """Return the defaults of one of TRL's configuration classes without creating an instance."""
    fields: Mapping[str, object] = {
        name: field.default
        for name, field in config_class.__dataclass_fields__.items()  # type: ignore[attr-defined]
    }
    generations = fields.get("num_generations")
    return Defaults(
        float(str(fields["learning_rate"])),
        float(str(fields["num_train_epochs"])),
        generations if isinstance(generations, int) else None,
    )


def arguments_of(
    config: DeploymentConfig, device: torch.device, defaults: Defaults, folder: Path
) -> dict[str, object]:
    """Return all arguments of TRL's configuration, by name.

    Args:
        folder: the run directory.

    Raises:
        ValueError: the device does not support the configured precision.
    """
    training, name = config.training, config.training.method
    precision = choose_precision(training.mixed_precision, device).name
    batch_size = int(training.batch_size)
    generations = num_generations(config, defaults)
    arguments: dict[str, object] = {
        # Temper's checkpoints replace TRL's, and `TrainingRhythm` decides when to evaluate.
        "output_dir": str(folder),
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": training.log_frequency,
        "report_to": [],
        "disable_tqdm": False,
        "seed": training.seed,
        "data_seed": training.seed,
        "use_cpu": device.type == "cpu",
        "learning_rate": learning_rate(config, defaults),
        "lr_scheduler_type": SCHEDULES[training.scheduler_type],
        "warmup_steps": training.warmup_steps,
        "num_train_epochs": num_epochs(config, defaults),
        "max_steps": -1 if training.max_steps is None else training.max_steps,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": _whole_groups(batch_size, generations),
        "gradient_accumulation_steps": training.gradient_accumulation,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm or 0.0,
        "optim": OPTIMIZERS[training.optimizer],
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "tf32": _tf32(config, device),
        "gradient_checkpointing": training.gradient_checkpointing,
        "dataloader_pin_memory": config.data.pin_memory,
    }
    if training.beta != "auto":
        arguments["beta"] = training.beta
    if name in WITH_LENGTH:
        arguments["max_length"] = config.data.max_length
    else:
        arguments["max_completion_length"] = training.max_completion_length
        arguments["temperature"] = training.temperature
    if generations is not None:
        arguments["num_generations"] = generations
    return arguments | training.method_settings


def learning_rate(config: DeploymentConfig, defaults: Defaults) -> float:
    """Return the peak learning rate: as configured, or TRL's default, which is multiplied by ten
    for LoRA.
    """
    if config.training.learning_rate != "auto":
        return config.training.learning_rate
    factor = LORA_FACTOR if trains_lora(config.model) else 1
    return defaults.learning_rate * factor


def num_epochs(config: DeploymentConfig, defaults: Defaults) -> float:
    """Return the number of epochs: as configured, or TRL's default."""
    given = config.training.num_epochs
    return defaults.num_epochs if given == "auto" else float(given)


def num_generations(config: DeploymentConfig, defaults: Defaults) -> int | None:
    """Return the number of answers per prompt: as configured, or TRL's default.

    None if the method has no such argument.
    """
    given = config.training.num_generations
    return defaults.num_generations if given == "auto" else given


def _whole_groups(batch_size: int, generations: int | None) -> int:
    """Round a batch size down so that a batch contains all answers to each of its prompts."""
    if generations is None:
        return batch_size
    return max(1, batch_size // generations) * generations


def _tf32(config: DeploymentConfig, device: torch.device) -> bool | None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < AMPERE:
        return None
    return config.enable_gpu_optimization
