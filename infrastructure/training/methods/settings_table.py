"""What each setting of Temper means where TRL trains, as data: nothing is ever ignored.

A setting becomes an argument of TRL's configuration, or Temper does itself what it says, or it has
nothing to decide there, which is said; any other value is refused by its name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import format_value
from infrastructure.config.merging.precedence import Source
from infrastructure.config.schema import schema_of
from infrastructure.core.messages import phrase
from infrastructure.run.configuration_judge import names as accepted_names


class Use(Enum):
    """Who carries a setting out."""

    ARGUMENT = "an argument of TRL's configuration"
    MODEL = "how the model is loaded"
    DATA = "how Temper reads the rows"
    RUN = "Temper's run around the training"
    NOTHING = "nothing to decide"
    REFUSED = "refused"


@dataclass(frozen=True)
class Treatment:
    """What becomes of a setting.

    Attributes:
        words: the argument's name, or why there is nothing to decide, or why it is refused.
        values: the values that can be carried out; None: every one.
    """

    use: Use
    words: str
    values: tuple[object, ...] | None = None


def _argument(name: str, *values: object) -> Treatment:
    return Treatment(Use.ARGUMENT, name, values or None)


def _refused(why: str, *values: object) -> Treatment:
    """All but the default and these values."""
    return Treatment(Use.REFUSED, why, values)


def _nothing(why: str) -> Treatment:
    return Treatment(Use.NOTHING, why)


_RUN, _DATA, _MODEL = (Treatment(use, "") for use in (Use.RUN, Use.DATA, Use.MODEL))
_OWN_LOOP = "only Temper's own loop does that"
_ALL_WEIGHTS = "TRL trains all weights alike, or LoRA"
_READS_ALL = "TRL's trainers hold all rows, which Temper reads before the first step"
_ITS_LOADER = "TRL's loader makes batches in the training process"
_ITS_LOSS = "the method is the loss"
_ONE_PROCESS = "TRL's methods train in one process here"

# By key, or by the beginning of keys that ends in a dot; the longest that fits counts.
SETTINGS: dict[str, Treatment] = {
    **dict.fromkeys(
        (
            *("model.name", "model.quantization", "model.lora_config", "model.dtype"),
            *("model.lora_config.r", "model.lora_config.alpha", "model.lora_config.dropout"),
            *("model.lora_config.target_modules", "model.attention", "model.trust_remote_code"),
            *("model.lora_config.use_dora", "model.lora_config.use_rslora"),
            *("model.lora_config.experts", "model.revision"),
        ),
        _MODEL,
    ),
    "model.lora_config.init_lora_weights": _refused("TRL's trainers begin a LoRA without a change"),
    "model.lora_config.router": _refused("TRL's trainers train the matrices alone"),
    "model.lora_config.rank_pattern": _refused("LoRA has one rank in TRL's trainers here"),
    "model.backend": _refused("TRL's trainers load models by transformers here", "transformers"),
    "model.quantization_aware": _refused(_OWN_LOOP),
    "model.adapter": _refused("TRL talks to the model itself"),
    "model.train_vision": _refused("methods train on text here"),
    "model.embedded.": _nothing("a method begins with a trained model"),
    **dict.fromkeys(
        (
            *("data.path", "data.eval_path", "data.format", "data.encoding", "data.prompt_column"),
            *("data.answer_column", "data.context_column", "data.max_length"),
            "data.validation_split",
            *("data.max_bad_rows_percent", "data.accept_small_data", "data.chat_template"),
        ),
        _DATA,
    ),
    "data.shape": _refused("the columns tell what the rows are"),
    "data.text_column": _refused("rows are answers to prompts here, no texts"),
    "data.image_column": _refused("methods train on text here"),
    "data.image_background": _refused("methods train on text here"),
    "data.task_column": _refused(_OWN_LOOP),
    "data.over_length": Treatment(
        Use.DATA, "TRL cuts the ends of longer rows", ("keep_start", "quarantine")
    ),
    "data.packing": _nothing("rows are compared with each other, so none are packed"),
    "data.train_on": _refused("only answers are learnt"),
    "data.num_workers": _refused(_ITS_LOADER, 0),
    "data.prefetch_factor": _refused(_ITS_LOADER),
    "data.pin_memory": _argument("dataloader_pin_memory"),
    "data.streaming": _refused(_READS_ALL),
    "data.buffer_size": _nothing("nothing streams"),
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
    "training.scheduler_type": _argument("lr_scheduler_type"),
    "training.max_grad_norm": _argument("max_grad_norm"),
    "training.optimizer": _argument(
        "optim", "adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit", "sgd"
    ),
    "training.adam_beta1": _argument("adam_beta1"),
    "training.adam_beta2": _argument("adam_beta2"),
    "training.mixed_precision": _argument("bf16", True, False, "bf16", "fp16", "fp32"),
    "training.gradient_checkpointing": _argument("gradient_checkpointing"),
    "training.gradient_checkpointing_mode": _refused("TRL recomputes all blocks"),
    "training.memory_efficient_attention": _MODEL,
    "training.seed": _argument("seed"),
    "training.checkpoint_interval": _RUN,
    "training.checkpoint_frequency": _RUN,
    "training.keep_checkpoints": _RUN,
    "training.checkpoint_seconds": _RUN,
    "training.keep_best": _RUN,
    "training.best_metric": _refused("TRL measures held-out rows by their loss", "loss"),
    "training.best_metric_mode": _refused("TRL measures held-out rows by their loss", "auto"),
    "training.keep_every": _RUN,
    "training.compress_checkpoints": _RUN,
    "training.deadline": _RUN,
    "training.validation_interval": _RUN,
    "training.validation_frequency": _RUN,
    "training.validation_prompts": _refused("TRL measures held-out rows by their loss", 0),
    "training.log_frequency": _argument("logging_steps"),
    "training.early_stopping_patience": _RUN,
    "training.early_stopping_min_delta": _RUN,
    "training.enabled_extensions": _RUN,
    "training.recovery.out_of_memory": _refused(
        "TRL's trainers stop, and the finished steps are saved", "stop"
    ),
    "training.recovery.not_finite": _refused(
        "a training whose weights are no longer finite stops", "stop"
    ),
    "training.recovery.max_failed_saves": _RUN,
    "training.metrics_sinks": _RUN,
    "training.loss": _refused(_ITS_LOSS),
    "training.metrics": _refused(_ITS_LOSS),
    "training.settings": _refused("training.method_settings are TRL's"),
    "backup.": _RUN,
    "cache.": _nothing("rows are tokenised by TRL, and kept in memory"),
    "memory.": _refused(_OWN_LOOP),
    "memory.gpu_memory_fraction": _refused(_OWN_LOOP),
    "monitor.": _RUN,
    "resources.": _refused(_OWN_LOOP),
    "quantum.": _refused("the quantum step belongs to Temper's own loop"),
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
    "enable_memory_optimization": _nothing("nothing of Temper's is in the loop to release"),
    "enable_monitoring": _RUN,
    "enable_backups": _RUN,
    "enable_testing": _nothing("rows, rewards and arguments are tried before the model loads"),
    "testing_interval": _refused(_OWN_LOOP),
    "max_memory_percent": _refused("TRL's trainers release no memory between steps"),
}


def treatment_of(key: str) -> Treatment | None:
    """What becomes of a canonical key; None: nobody has said."""
    parts = key.split(".")
    names = [key, *[".".join(parts[:n]) + "." for n in range(len(parts) - 1, 0, -1)]]
    return next((SETTINGS[name] for name in names if name in SETTINGS), None)


def setting_names() -> dict[str, str]:
    """What `--accept` calls each argument of a Trainer that a setting becomes."""
    known = accepted_names()
    return {
        treatment.words: known[key]
        for key, treatment in SETTINGS.items()
        if treatment.use is Use.ARGUMENT and key in known
    }


def refused_settings(
    config: DeploymentConfig, source_of: Callable[[str], Source] | None = None
) -> Iterator[str]:
    """A sentence, with the way on, for each setting that TRL's trainers cannot carry out."""
    fields = schema_of(DeploymentConfig).fields
    for key in config.present_keys():
        treatment, spec = treatment_of(key), fields[key]
        value = config.value(key)
        if treatment is None or treatment.values is None or _is_one_of(value, treatment.values):
            continue
        if value == spec.default:
            continue
        place = (source_of or config.source)(key).place
        yield (
            phrase(
                "methods.cannot_carried_out_training",
                key=key,
                value=format_value(value),
                place=place,
                method=config.training.method,
                words=treatment.words,
            )
        )


def _is_one_of(value: Any, values: tuple[object, ...]) -> bool:
    """Whether it is one of them; 1 is not true."""
    return any(value == one and type(value) is type(one) for one in values)
