"""Early checks that a TRL method, its data, model and settings fit together.

This does not import torch, so an invalid combination is reported within a second.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import format_value
from infrastructure.config.sections.training_config import BY_REWARD, SFT
from infrastructure.core.errors import InputError
from infrastructure.core.features import extensions_with
from infrastructure.core.json_text import JsonObject, as_object, parse_json
from infrastructure.core.launcher import launched_process
from infrastructure.core.lookup import meant_hint, nearest
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import refuse_missing
from infrastructure.data.readers.sources import HUGGINGFACE, files_of, may_be_on_the_hub
from infrastructure.models.saved_model import EXTENSIONS_MANIFEST
from infrastructure.training.methods.method_data import understand
from infrastructure.training.methods.method_rows import MethodShape
from infrastructure.training.methods.method_table import (
    METHODS,
    RowKind,
    TrlMethod,
    installed_method,
)
from infrastructure.training.methods.rewards import needs_answers, reward_functions
from infrastructure.training.methods.settings_table import SETTINGS, Use, refused_settings

REGISTERED_MANIFEST = "temper_model.json"
WITHOUT_BETA_NOTHING = ("dpo", "kto")
# TRL arguments that would change what Temper guarantees.
NOT_HERE = {
    "sync_ref_model": "methods.ref_model_not_saved",
    "ref_model_sync_steps": "methods.needs_sync_ref_model",
    "ref_model_mixup_alpha": "methods.needs_sync_ref_model",
    "use_vllm": "methods.vllm_state_not_saved",
    "model_init_kwargs": "methods.set_model_settings",
    "teacher_model_init_kwargs": "methods.teacher_loaded_as_model",
    "teacher_model_name_or_path": "methods.set_teacher",
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
    _refuse_launcher(method)
    _check_model(config.model.name, "model.name", takes_lora=method != "reward")
    if method in BY_REWARD:
        reward_functions(config.training.rewards)
    if method == "distillation":
        _check_teacher(config)
    if config.data.path is not None and _is_here(config):
        check_shape(config, understand(files_of(config.data)[0], config.data, method))


def _refuse_launcher(method: str) -> None:
    if launched_process() is not None:
        raise ConfigurationError("methods.launcher_not_supported", method=method)


def problems_of(config: DeploymentConfig, installed: TrlMethod) -> list[str]:
    """Return a message for each setting that TRL cannot apply or that conflicts with another
    setting.
    """
    return [
        *refused_settings(config),
        *_contradictions(config),
        *_method_settings(config, installed.own_arguments()),
    ]


def check_shape(config: DeploymentConfig, shape: MethodShape) -> None:
    """Raise if a reward compares completions with answers but the rows have no answers.

    Raises:
        ValueError: the rows have no answers; the message names the reward.
    """
    is_without = shape.kind is RowKind.PROMPTS and not shape.has_answers
    if is_without and needs_answers(config.training.rewards):
        raise InputError("methods.exact_answer_without_answers", reason=shape.reason)


def _is_here(config: DeploymentConfig) -> bool:
    path = str(config.data.path)
    return config.data.format != HUGGINGFACE and not may_be_on_the_hub(path)


def _contradictions(config: DeploymentConfig) -> Iterator[str]:
    """Yield a message for each setting with which TRL would fail or learn nothing."""
    training, method = config.training, config.training.method
    yield from _without_effect(method, training.method_settings)
    size = training.batch_size
    if size == "auto":
        yield (phrase("methods.batch_size_auto", method=method))
        return
    if method in WITHOUT_BETA_NOTHING and training.beta == 0:
        yield (phrase("methods.beta_zero", method=METHODS[method].title))
    if method == "kto" and size == 1:
        yield (phrase("methods.kto_batch_of_one"))
    per_step = int(size) * training.gradient_accumulation
    if training.num_generations != "auto" and per_step % training.num_generations:
        yield (
            phrase(
                "methods.num_generations_not_divisor",
                num_generations=training.num_generations,
                per_step=per_step,
            )
        )
    if METHODS[method].rows is RowKind.PROMPTS:
        longest = training.max_completion_length
        if longest >= config.data.max_length:
            yield (
                phrase(
                    "methods.completion_leaves_no_prompt",
                    longest=longest,
                    max_length=config.data.max_length,
                    suggested=max(1, config.data.max_length // 2),
                )
            )
    if method == "distillation" and training.beta != "auto" and training.beta > 1:
        yield (phrase("methods.distillation_beta_above_one", beta=format_value(training.beta)))
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


def _method_settings(config: DeploymentConfig, known: frozenset[str]) -> Iterator[str]:
    """Yield a message for each TRL argument that is unknown or has an equivalent setting in
    Temper.
    """
    ours = {t.words: key for key, t in SETTINGS.items() if t.use is Use.ARGUMENT}
    ours |= {"max_length": "data.max_length"}
    for name in config.training.method_settings:
        if name in NOT_HERE:
            yield phrase("methods.argument_not_supported", name=name, reason=phrase(NOT_HERE[name]))
        elif name in ours:
            yield phrase("methods.argument_has_setting", name=name, setting=Setting(ours[name]))
        elif name.startswith("vllm_") or name not in known:
            meant = nearest(name, known)
            hint = meant_hint(meant)
            title = METHODS[config.training.method].class_name
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


def _check_model(name: str, key: str, *, takes_lora: bool = False) -> None:
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
    if not (folder / "config.json").is_file():
        return
    values = _read_config(folder)
    if values.get("is_encoder_decoder"):
        raise InputError("methods.encoder_decoder_model", key=key, name=name)
    if "vision_config" in values:
        raise InputError("methods.model_reads_images", key=key, name=name)


def _read_config(folder: Path) -> JsonObject:
    try:
        return as_object(parse_json((folder / "config.json").read_text()))
    except (OSError, ValueError):
        return {}  # loading it reports what is wrong with it


def _check_teacher(config: DeploymentConfig) -> None:
    teacher = config.training.teacher
    if teacher is None:
        raise InputError("methods.teacher_missing")
    folders = [Path(name).expanduser() for name in (teacher, config.model.name)]
    if teacher.startswith((".", "/", "~")) and not folders[0].exists():
        raise InputError("methods.teacher_folder_missing", teacher=teacher)
    if teacher == config.model.name or folders[0].resolve() == folders[1].resolve():
        raise InputError("methods.teacher_is_model", teacher=teacher)
    _check_model(teacher, "training.teacher")
    sizes = [_vocabulary_size(folder) for folder in folders]
    if None not in sizes and sizes[0] != sizes[1]:
        raise InputError(
            "methods.teacher_vocabulary_differs", teacher_size=sizes[0], model_size=sizes[1]
        )


def _vocabulary_size(folder: Path) -> object:
    inside = folder if (folder / "config.json").is_file() else folder / "final"
    return _read_config(inside).get("vocab_size")
