"""Table of how each setting of Temper is applied when TRL trains.

A setting becomes an argument of TRL's configuration, is applied by Temper itself, or has no effect
with TRL, which Temper reports. All other settings are rejected, so none is silently ignored.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import as_typed
from infrastructure.config.merging.precedence import Source, where
from infrastructure.config.schema import schema_of
from infrastructure.core.features import fields_of_features
from infrastructure.core.messages import Setting, phrase
from infrastructure.run.configuration_judge import names as accepted_names

# TRL's names of schedules and optimizers; it has no other of ours.
SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}
OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw": "paged_adamw_32bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "sgd": "sgd",
}


class Use(Enum):
    """The way in which a setting is applied."""

    ARGUMENT = "an argument of TRL's configuration"
    MODEL = "how the model is loaded"
    DATA = "how Temper reads the rows"
    RUN = "Temper's run around the training"
    NOTHING = "nothing to decide"
    REFUSED = "refused"


@dataclass(frozen=True)
class Treatment:
    """How one setting is applied when TRL trains.

    Attributes:
        words: the argument's name, or the code of the message that says why the setting has no
            effect or is rejected.
        values: the values that can be applied. None: all.
    """

    use: Use
    words: str
    values: tuple[object, ...] | None = None

    def reason(self) -> str:
        """Return the reason why TRL's trainers cannot apply the setting."""
        if self.use is Use.ARGUMENT:
            values = [as_typed(value) for value in self.values or ()]
            return phrase("methods.argument_takes_only", argument=self.words, values=values)
        return phrase(self.words)


def _argument(name: str, *values: object) -> Treatment:
    return Treatment(Use.ARGUMENT, name, values or None)


def _refused(why: str, *values: object) -> Treatment:
    """Return the treatment of a setting that is rejected unless it has its default or one of these
    values.
    """
    return Treatment(Use.REFUSED, why, values)


def _nothing(why: str) -> Treatment:
    return Treatment(Use.NOTHING, why)


_RUN, _DATA, _MODEL = (Treatment(use, "") for use in (Use.RUN, Use.DATA, Use.MODEL))
_OWN_LOOP = "methods.only_own_loop"
_ALL_WEIGHTS = "methods.strategies_not_used"
_READS_ALL = "methods.rows_kept_in_memory"
_ITS_LOADER = "methods.loader_in_training_process"
_ITS_LOSS = "methods.method_defines_loss"
_ONE_PROCESS = "methods.only_one_process"

# By key, or by a prefix of keys that ends with a dot. The longest match applies.
SETTINGS: dict[str, Treatment] = {
    **dict.fromkeys(
        (
            *("model.name", "model.quantization", "model.lora_config", "model.dtype"),
            *("model.lora_config.r", "model.lora_config.alpha", "model.lora_config.dropout"),
            *("model.lora_config.target_modules", "model.attention", "model.trust_remote_code"),
            *("model.lora_config.use_dora", "model.lora_config.use_rslora"),
            "model.revision",
        ),
        _MODEL,
    ),
    "model.backend": _refused("methods.loaded_by_transformers", "transformers"),
    "model.quantization_aware": _refused(_OWN_LOOP),
    "model.adapter": _refused("methods.adapter_not_used"),
    "model.train_vision": _refused("methods.text_only"),
    "model.embedded.": _nothing("methods.starts_from_trained_model"),
    **dict.fromkeys(
        (
            *("data.path", "data.eval_path", "data.format", "data.encoding", "data.prompt_column"),
            *("data.answer_column", "data.context_column", "data.max_length"),
            "data.validation_split",
            *("data.max_bad_rows_percent", "data.accept_small_data", "data.chat_template"),
        ),
        _DATA,
    ),
    "data.shape": _refused("methods.columns_determine_shape"),
    "data.text_column": _refused("methods.plain_text_not_trained"),
    "data.image_column": _refused("methods.text_only"),
    "data.image_background": _refused("methods.text_only"),
    "data.task_column": _refused(_OWN_LOOP),
    "data.over_length": Treatment(
        Use.DATA, "methods.truncates_only_ends", ("keep_start", "quarantine")
    ),
    "data.packing": _nothing("methods.rows_not_packed"),
    "data.train_on": _refused("methods.only_answers_trained"),
    "data.num_workers": _refused(_ITS_LOADER, 0),
    "data.prefetch_factor": _refused(_ITS_LOADER),
    "data.pin_memory": _argument("dataloader_pin_memory"),
    "data.streaming": _refused(_READS_ALL),
    "data.buffer_size": _nothing("methods.rows_not_streamed"),
    "data.memory_limit": _refused(_READS_ALL),
    "data.balance_by": _refused(_OWN_LOOP),
    "data.augmentation": _refused(_OWN_LOOP),
    "training.": _refused(_OWN_LOOP),
    "training.method": _RUN,
    "training.rewards": _DATA,
    "training.teacher": _MODEL,
    "training.beta": _argument("beta"),
    "training.num_generations": _argument("num_generations"),
    "training.max_completion_length": _argument("max_completion_length"),
    "training.temperature": _argument("temperature"),
    "training.method_settings": _argument("each by its own name"),
    "training.strategy": _refused(_ALL_WEIGHTS),
    "training.num_epochs": _argument("num_train_epochs"),
    "training.max_steps": _argument("max_steps"),
    "training.batch_size": _argument("per_device_train_batch_size"),
    "training.gradient_accumulation": _argument("gradient_accumulation_steps"),
    "training.learning_rate": _argument("learning_rate"),
    "training.weight_decay": _argument("weight_decay"),
    "training.warmup_steps": _argument("warmup_steps"),
    "training.scheduler_type": _argument("lr_scheduler_type", *SCHEDULES),
    "training.max_grad_norm": _argument("max_grad_norm"),
    "training.optimizer": _argument("optim", *OPTIMIZERS),
    "training.mixed_precision": _argument("bf16", True, False, "bf16", "fp16", "fp32"),
    "training.gradient_checkpointing": _argument("gradient_checkpointing"),
    "training.gradient_checkpointing_mode": _refused("methods.every_block_recomputed"),
    "training.memory_efficient_attention": _MODEL,
    "training.seed": _argument("seed"),
    "training.checkpoint_interval": _RUN,
    "training.checkpoint_frequency": _RUN,
    "training.keep_checkpoints": _RUN,
    "training.checkpoint_seconds": _RUN,
    "training.keep_best": _RUN,
    "training.best_metric": _refused("methods.only_held_out_loss", "loss"),
    "training.best_metric_mode": _refused("methods.only_held_out_loss", "auto"),
    "training.deadline": _RUN,
    "training.validation_interval": _RUN,
    "training.validation_frequency": _RUN,
    "training.validation_prompts": _refused("methods.only_held_out_loss", 0),
    "training.log_frequency": _argument("logging_steps"),
    "training.early_stopping_patience": _RUN,
    "training.enabled_extensions": _RUN,
    "training.recovery.out_of_memory": _refused("methods.stops_out_of_memory", "stop"),
    "training.recovery.not_finite": _refused("methods.stops_not_finite", "stop"),
    "training.metrics_sinks": _RUN,
    "training.loss": _refused(_ITS_LOSS),
    "training.metrics": _refused(_ITS_LOSS),
    "training.settings": _refused("methods.set_method_settings"),
    "backup.": _RUN,
    "cache.": _nothing("methods.rows_tokenized_by_trl"),
    "memory.": _refused(_OWN_LOOP),
    "memory.gpu_memory_fraction": _refused(_OWN_LOOP),
    "monitor.": _RUN,
    "resources.": _refused(_OWN_LOOP),
    "output_dir": _RUN,
    "new_run": _RUN,
    "run_name": _RUN,
    "log_level": _RUN,
    "verbose": _RUN,
    "device": _argument("use_cpu"),
    "cuda_visible_devices": _RUN,
    **dict.fromkeys(("num_processes", "process_timeout"), _refused(_ONE_PROCESS)),
    "price_per_hour": _RUN,
    "enable_gpu_optimization": _argument("tf32"),
    "enable_memory_optimization": _nothing("methods.memory_released_in_own_loop"),
    "enable_monitoring": _RUN,
    "enable_backups": _RUN,
    "enable_testing": _nothing("methods.checked_before_loading"),
    "max_memory_percent": _refused("methods.memory_not_released"),
}


def treatment_of(key: str) -> Treatment | None:
    """Return the treatment of a setting, or None if the table does not contain it."""
    parts = key.split(".")
    names = [key, *[".".join(parts[:n]) + "." for n in range(len(parts) - 1, 0, -1)]]
    of_feature = _refused(_OWN_LOOP) if parts[0] in fields_of_features("") else None
    return next((SETTINGS[name] for name in names if name in SETTINGS), of_feature)


def setting_names() -> dict[str, str]:
    """Map each Trainer argument that comes from a setting to the setting's name for `--accept`."""
    known = accepted_names()
    return {
        treatment.words: known[key]
        for key, treatment in SETTINGS.items()
        if treatment.use is Use.ARGUMENT and key in known
    }


def refused_settings(
    config: DeploymentConfig, source_of: Callable[[str], Source] | None = None
) -> Iterator[str]:
    """Yield a message, with a remedy, for each setting that TRL's trainers cannot apply."""
    fields = schema_of(DeploymentConfig).fields
    for key in config.present_keys():
        treatment, spec = treatment_of(key), fields[key]
        value = config.value(key)
        if treatment is None or treatment.values is None or _is_one_of(value, treatment.values):
            continue
        if value == spec.default:
            continue
        yield phrase(
            "methods.setting_not_supported",
            setting=Setting(key, as_typed(value)),
            where=where((source_of or config.source)(key)),
            method=config.training.method,
            reason=treatment.reason(),
        )


def _is_one_of(value: Any, values: tuple[object, ...]) -> bool:
    """Return whether `value` is one of `values` and has the same type, so that 1 is not True."""
    return any(value == one and type(value) is type(one) for one in values)
