"""Early checks that a TRL method, its data, model and settings fit together.

This does not import torch, so an invalid combination is reported within a second.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import as_typed, format_value
from infrastructure.config.merging.precedence import Source, where
from infrastructure.config.methods import SFT, Method, RowKind, method_named
from infrastructure.config.schema import schema_of
from infrastructure.core.errors import InputError
from infrastructure.core.features import extensions_with, fields_of_features
from infrastructure.core.json_text import json_of
from infrastructure.core.launcher import launched_process
from infrastructure.core.lookup import meant_hint, nearest
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import refuse_missing
from infrastructure.data.readers.sources import HUGGINGFACE, files_of, may_be_on_the_hub
from infrastructure.models.saved_model import EXTENSIONS_MANIFEST, REGISTERED_MANIFEST
from infrastructure.run.configuration_judge import names as accepted_names
from infrastructure.training.methods.method_data import MethodShape, understand
from infrastructure.training.methods.method_table import (
    TrlMethod,
    installed_method,
)
from infrastructure.training.methods.rewards import needs_answers, reward_functions

# Table of how each setting of Temper is applied when TRL trains.
#
# A setting becomes an argument of TRL's configuration, is applied by Temper itself, or has no
# effect with TRL, which Temper reports. All other settings are rejected, so none is silently
# ignored.

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
    "data.augmentation": _refused(_OWN_LOOP),
    "training.": _refused(_OWN_LOOP),
    "training.method": _RUN,
    "training.rewards": _DATA,
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
    is_of_feature = parts[0] in fields_of_features("") or (
        parts[0] == "model" and parts[1] in fields_of_features("model")
    )
    of_feature = _refused(_OWN_LOOP) if is_of_feature else None
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
    fields, method = schema_of(DeploymentConfig).fields, method_named(config.training.method)
    for key in config.present_keys():
        if method is not None and key in method.settings:
            continue
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


# TRL arguments that would change what Temper guarantees.
NOT_HERE = {
    "sync_ref_model": "methods.ref_model_not_saved",
    "ref_model_sync_steps": "methods.needs_sync_ref_model",
    "ref_model_mixup_alpha": "methods.needs_sync_ref_model",
    "use_vllm": "methods.vllm_state_not_saved",
    "model_init_kwargs": "methods.set_model_settings",
    "chat_template_path": "methods.set_chat_template",
    "log_completions_hub_repo": "methods.only_backups_are_uploaded",
}

# (method, TRL argument that has no effect on its own): the argument and the values that it needs.
# "" means every method.
NEEDED: dict[tuple[str, str], tuple[str, tuple[object, ...]]] = {
    ("dpo", "label_smoothing"): ("loss_type", ("robust", "exo_pair", "aot", "aot_unpaired")),
    ("dpo", "discopop_tau"): ("loss_type", ("discopop",)),
    ("dpo", "f_alpha_divergence_coef"): ("f_divergence_type", ("alpha_divergence",)),
    ("grpo", "sapo_temperature_neg"): ("loss_type", ("sapo",)),
    ("grpo", "sapo_temperature_pos"): ("loss_type", ("sapo",)),
    **{
        ("grpo", f"vespo_{name}"): ("loss_type", ("vespo",))
        for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")
    },
    **{
        ("grpo", f"entropy_coef_{name}"): ("use_adaptive_entropy", (True,))
        for name in ("min", "max", "delta")
    },
    ("", "precompute_ref_batch_size"): ("precompute_ref_log_probs", (True,)),
    ("", "num_completions_to_print"): ("log_completions", (True,)),
    ("", "log_unique_prompts"): ("log_completions", (True,)),
}


def check_method(config: DeploymentConfig) -> None:
    """Raise if TRL cannot train with this configuration.

    Nothing is checked if Temper's own loop trains (supervised fine-tuning).

    Raises:
        ValueError: settings do not fit together; the message says which, and what to do.
        MissingPackageError: TRL, datasets or PEFT is needed and not installed.
    """
    method = config.training.method
    if method == SFT:
        return
    installed = installed_method(method)
    needed_for = format(Setting("training.method", method))
    refuse_missing("datasets", needed_for)
    if config.model.lora_config is not None:
        refuse_missing("peft", format(Setting("model.lora_config")))
    if problems := problems_of(config, installed):
        raise ConfigurationError("\n".join(problems))
    if launched_process() is not None:
        raise ConfigurationError("methods.launcher_not_supported", method=method)
    is_text = installed.method.head == Method.head
    check_model(config.model.name, "model.name", takes_lora=is_text)
    if installed.method.has_rewards:
        reward_functions(config.training.rewards)
    installed.method.check(config)
    data = config.data
    is_on_hub = data.format == HUGGINGFACE or may_be_on_the_hub(str(data.path))
    if data.path is not None and not is_on_hub:
        check_shape(config, understand(files_of(data)[0], data, method))


def problems_of(config: DeploymentConfig, installed: TrlMethod) -> list[str]:
    """Return a message for each setting that TRL cannot apply or that conflicts with another
    setting.
    """
    return [
        *refused_settings(config),
        *_contradictions(config, installed.method),
        *_method_settings(config, installed),
    ]


def check_shape(config: DeploymentConfig, shape: MethodShape) -> None:
    """Raise if a reward compares completions with answers but the rows have no answers.

    Raises:
        ValueError: the rows have no answers; the message names the reward.
    """
    is_without = shape.kind is RowKind.PROMPTS and not shape.has_answers
    if is_without and needs_answers(config.training.rewards):
        raise InputError("methods.exact_answer_without_answers", reason=shape.reason)


def _contradictions(config: DeploymentConfig, kind: Method) -> Iterator[str]:
    """Yield a message for each setting with which TRL would fail or learn nothing."""
    training, method = config.training, config.training.method
    yield from _without_effect(method, training.method_settings)
    size = training.batch_size
    if size == "auto":
        yield (phrase("methods.batch_size_auto", method=method))
        return
    if kind.needs_beta and training.beta == 0:
        yield (phrase("methods.beta_zero", method=kind.title))
    if int(size) < kind.least_batch:
        least = kind.least_batch
        yield phrase("methods.batch_too_small", method=kind.title, size=size, least=least)
    per_step = int(size) * training.gradient_accumulation
    if training.num_generations != "auto" and per_step % training.num_generations:
        yield (
            phrase(
                "methods.num_generations_not_divisor",
                num_generations=training.num_generations,
                per_step=per_step,
            )
        )
    if kind.generates:
        longest = training.max_completion_length
        if longest >= config.data.max_length:
            yield (
                phrase(
                    "methods.completion_leaves_no_prompt",
                    longest=longest,
                    max_length=config.data.max_length,
                    suggested=config.data.max_length // 2,
                )
            )
    if config.device.startswith("cuda:") and config.device != "cuda:0":
        yield (
            phrase(
                "methods.device_not_first_gpu",
                device=config.device,
                index=config.device.partition(":")[2],
            )
        )
    if config.model.quantization is not None and config.model.lora_config is None:
        yield (phrase("methods.quantization_without_lora", quantization=config.model.quantization))
    for name in extensions_with("needs_own_loop") & {*training.extensions}:
        yield phrase("methods.extension_needs_own_loop", name=name, method=method)


def _method_settings(config: DeploymentConfig, installed: TrlMethod) -> Iterator[str]:
    """Yield a message for each TRL argument that is unknown or has an equivalent setting in
    Temper.
    """
    refused, known = {**NOT_HERE, **installed.method.refused}, installed.own_arguments()
    ours = {t.words: key for key, t in SETTINGS.items() if t.use is Use.ARGUMENT}
    ours |= {"max_length": "data.max_length"}
    for name in config.training.method_settings:
        if name in refused:
            yield phrase("methods.argument_not_supported", name=name, reason=phrase(refused[name]))
        elif name in ours:
            yield phrase("methods.argument_has_setting", name=name, setting=Setting(ours[name]))
        elif name.startswith("vllm_") or name not in known:
            meant = nearest(name, known)
            hint = meant_hint(meant)
            title = installed.method.class_name
            yield (phrase("methods.unknown_argument", title=title, name=name, hint=hint))


def _without_effect(method: str, given: Mapping[str, object]) -> Iterator[str]:
    """Yield a message for each TRL argument that has no effect without another one."""
    for name in given:
        needed = NEEDED.get((method, name)) or NEEDED.get(("", name))
        if needed is None:
            continue
        other, values = needed
        has = given.get(other)
        if not {*map(str, has if isinstance(has, list) else [has])} & {*map(str, values)}:
            words = " or ".join(map(format_value, values))
            yield (
                phrase(
                    "methods.argument_no_effect",
                    name=name,
                    method=method,
                    other=other,
                    values=words,
                )
            )
    weights, losses = given.get("loss_weights"), given.get("loss_type")
    if weights is not None and not (isinstance(losses, list) and len(losses) > 1):
        yield phrase("methods.loss_weights_of_one_loss")


def check_model(name: str, key: str, *, takes_lora: bool = False) -> None:
    """Raise if a local model is not a text language model. Hub models are checked later."""
    key = Setting(key)
    if name == "embedded":
        raise InputError("methods.embedded_model_untrained")
    folder = Path(name).expanduser()
    if (folder / "final").is_dir() and not (folder / "config.json").is_file():
        folder = folder / "final"
    if (folder / REGISTERED_MANIFEST).is_file():
        raise InputError("methods.model_reads_no_text", key=key, name=name)
    if (folder / EXTENSIONS_MANIFEST).is_file():
        raise InputError(
            "methods.model_has_extension_weights",
            key=key,
            name=name,
            manifest=EXTENSIONS_MANIFEST,
        )
    if (folder / "adapter_config.json").is_file():
        if not takes_lora:
            raise InputError("methods.whole_model_needed", key=key, name=name)
        return
    values = json_of(folder / "config.json")
    if values.get("is_encoder_decoder"):
        raise InputError("methods.encoder_decoder_model", key=key, name=name)
    if "vision_config" in values:
        raise InputError("methods.model_reads_images", key=key, name=name)
