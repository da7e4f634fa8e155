"""Checks, when a run starts, for settings that are valid alone but contradict each other."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from infrastructure.config.auto import attention_for
from infrastructure.config.base import ConfigurationError
from infrastructure.config.field_help import format_value
from infrastructure.config.measures import MEASURES, OF_TORCHMETRICS
from infrastructure.config.merging.added_weights import (
    added_weights_refusals,
    on_several_processes,
)
from infrastructure.config.merging.stackwise_cross_checks import stackwise_contradictions
from infrastructure.config.merging.vision_tower import vision_tower_refusals
from infrastructure.config.sampler_needs import check_sampler
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.memory_settings import MEMORY
from infrastructure.config.sections.model_config import ModelConfig, variants_of
from infrastructure.config.sections.quantum_config import (
    BASELINES,
    DATA_SELECTION,
    RANK_ALLOCATION,
    SAMPLER,
    QuantumConfig,
)
from infrastructure.config.sections.stackwise_config import STACKWISE
from infrastructure.config.sections.training_config import (
    CURRICULUM,
    QUANTUM,
    TrainingConfig,
)
from infrastructure.core.errors import MissingPackageError, MissingSecretError
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import is_installed

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


class HasSections(Protocol):
    """The sections and switches of a configuration that these checks read."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    quantum: QuantumConfig
    enable_gpu_optimization: bool


def contradictions(config: HasSections) -> Iterator[str]:
    """Yield a message, with the remedy, for each contradiction between sections."""
    yield from _attention(config.model, config.training)
    yield from _longer_than_the_model_sees(config.model, config.data)
    yield from _balance_of_a_stream(config.data)
    yield from _web_addresses(config)
    yield from _unmeasured(config)
    yield from _no_best(config.training)
    yield from _nothing_to_decide(config)
    yield from _missing_samplers(config)
    yield from _curriculum(config)
    yield from _lora_variants(config)
    yield from _quantization_aware(config)
    enabled = [MEMORY] if config.training.enables(MEMORY) else []
    yield from added_weights_refusals(enabled, config.model, config.training)
    yield from vision_tower_refusals(config.model, config.training)
    yield from stackwise_contradictions(config.model, config.data, config.training)


def several_processes(
    num_processes: int | str, device: str, cuda_visible_devices: str | None, adding: Sequence[str]
) -> Iterator[str]:
    """Yield messages on problems with several processes: too few GPUs, or added weights.

    Args:
        adding: the enabled extensions that add weights.
    """
    if adding and num_processes not in (1, "auto"):
        yield on_several_processes(adding, num_processes)
    if num_processes in (1, "auto") or device == "cpu":
        return
    if device.startswith("cuda:"):
        yield (
            phrase("config.processes_on_one_named_gpu", num_processes=num_processes, device=device)
        )
    named = (cuda_visible_devices or "").split(",")
    if cuda_visible_devices and len(named) < int(num_processes):
        yield (
            phrase(
                "config.too_few_visible_gpus",
                num_processes=num_processes,
                count=len(named),
            )
        )


def place_among_runs(place: str | None, output_dir: str) -> Iterator[str]:
    """Yield a message if the backup destination is inside the directory of the runs."""
    if place is None or ("://" in place and not place.startswith("file://")):
        return
    folder = Path(place.removeprefix("file://").removeprefix("drive:")).expanduser().absolute()
    runs = Path(output_dir).expanduser().absolute()
    if Path(os.path.normpath(folder)).is_relative_to(os.path.normpath(runs)):
        yield (
            phrase(
                "config.destination_inside_output_dir",
                place=format_value(place),
                output_dir=output_dir,
            )
        )


def lora_in_passing(model: ModelConfig, settings: Collection[str], place: str) -> Iterator[str]:
    """Yield a message if a LoRA setting enables LoRA on new weights, which would stay random.

    Args:
        settings: the canonical keys that were given.
        place: the source of the LoRA setting.
    """
    is_new = model.name == "embedded" and model.lora_config is not None
    if is_new and "model.lora_config" not in settings:
        yield (phrase("config.lora_enabled_on_new_model", source=place))


def lora_beside_new_weights(model: ModelConfig, is_model_named: bool) -> Iterator[str]:
    """Yield a message if LoRA would train on weights that are new because no model was named."""
    if model.name == "embedded" and model.lora_config is not None and not is_model_named:
        yield (phrase("config.lora_without_trained_model"))


def testing_off(enable_testing: bool, testing_interval: float | None) -> Iterator[str]:
    """Yield a message if repeated checks are requested while checks are switched off."""
    if testing_interval is not None and not enable_testing:
        yield (
            phrase(
                "config.testing_interval_without_tests",
                value=format_value(testing_interval),
            )
        )


def _has_quantum_step(config: HasSections) -> bool:
    return QUANTUM in config.training.extensions


def _attention(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    try:
        attention_for(model, training)
    except ConfigurationError as error:
        yield str(error)


def _unmeasured(config: HasSections) -> Iterator[str]:
    if config.training.compile_mode == "auto" and not config.enable_gpu_optimization:
        yield (phrase("config.auto_compile_not_measured"))


def _no_best(training: TrainingConfig) -> Iterator[str]:
    """Yield a message for each reason why `training.best_metric` cannot be used."""
    name, own = training.best_metric, training.metrics
    if name not in MEASURES and name not in own:
        known = [*MEASURES, *own]
        yield (
            phrase(
                "config.unknown_best_metric",
                reason=unknown_name("measure", name, known),
            )
        )
    elif name not in MEASURES and training.best_metric_mode == "auto":
        yield (phrase("config.best_metric_without_mode", name=name))
    if training.best_needs_answers and training.validation_prompts == 0:
        yield (phrase("config.best_metric_needs_answers", name=name))
    if name in OF_TORCHMETRICS and not is_installed("torchmetrics"):
        yield phrase("config.best_metric_needs_torchmetrics", name=name)


def _nothing_to_decide(config: HasSections) -> Iterator[str]:
    """Yield a message for each reason why the quantum step has nothing to choose from."""
    if not _has_quantum_step(config):
        return
    if config.quantum.problem == DATA_SELECTION and config.data.streaming:
        yield (phrase("config.data_selection_with_streaming"))
    answers = (SAMPLER, *BASELINES[config.quantum.problem])
    if config.quantum.answer not in answers:
        reason = unknown_name("answer", config.quantum.answer, answers)
        yield phrase("config.setting_says", setting=Setting("quantum.answer"), reason=reason)
    if config.quantum.problem == DATA_SELECTION and config.quantum.data_budget == 1:
        yield (phrase("config.data_budget_keeps_everything"))
    if config.quantum.problem == RANK_ALLOCATION and config.quantum.rank_budget == 1:
        yield (phrase("config.rank_budget_keeps_everything"))
    if _comes_too_late(config):
        yield (phrase("config.background_answer_too_late"))
    if config.quantum.target == "validation" and not config.data.holds_out:
        yield (phrase("config.quantum_target_not_held_out"))
    if config.quantum.problem == RANK_ALLOCATION and config.model.lora_config is None:
        yield (phrase("config.rank_allocation_without_lora"))


def _curriculum(config: HasSections) -> Iterator[str]:
    """Yield a message for each setting that cannot be combined with a curriculum."""
    training = config.training
    if training.strategy != CURRICULUM:
        return
    if config.data.streaming:
        yield (phrase("config.curriculum_with_streaming"))
    if _has_quantum_step(config) and config.quantum.problem == DATA_SELECTION:
        yield (phrase("config.curriculum_with_data_selection"))
    if training.early_stopping_patience is not None:
        yield (phrase("config.curriculum_with_early_stopping"))
    if training.curriculum_by == "task" and len(training.curriculum_order) < 2:
        yield (phrase("config.curriculum_without_tasks"))


def _quantization_aware(config: HasSections) -> Iterator[str]:
    """Yield a message for each setting that is incompatible with quantization-aware training."""
    model, training = config.model, config.training
    if model.quantization_aware is None:
        return
    key = Setting("model.quantization_aware", model.quantization_aware)
    if model.lora_config is not None:
        yield (phrase("config.qat_with_lora", key=key))
    if model.quantization is not None:
        yield (phrase("config.qat_with_quantized_model", key=key, quantization=model.quantization))
    if model.backend == "unsloth":
        yield phrase("config.qat_with_unsloth", key=key)
    if training.strategy_for(model) in STACKWISE:
        yield phrase("config.qat_with_stacks", key=key)


def _lora_variants(config: HasSections) -> Iterator[str]:
    """Yield a message for each LoRA variant that PEFT, or another setting, does not allow."""
    lora, quantization = config.model.lora_config, config.model.quantization
    if lora is None:
        return
    key = "model.lora_config"
    if lora.init_lora_weights == "pissa" and quantization is not None:
        yield (phrase("config.pissa_with_quantized_model", quantization=quantization))
    if lora.init_lora_weights == "pissa" and config.model.name == "embedded":
        yield (phrase("config.pissa_on_new_model"))
    if lora.init_lora_weights == "loftq" and quantization != "4bit":
        yield (phrase("config.loftq_without_4bit"))
    if lora.use_dora and lora.init_lora_weights != "default":
        yield (
            phrase(
                "config.dora_with_lora_init",
                init_lora_weights=lora.init_lora_weights,
            )
        )
    if lora.init_lora_weights == "pissa" and lora.dropout:
        yield (phrase("config.pissa_with_dropout"))
    named = [name for name, is_on in variants_of(lora).items() if is_on]
    if config.model.backend == "unsloth" and named:
        yield (phrase("config.lora_variant_with_unsloth", setting=Setting(f"{key}.{named[0]}")))
    is_ranked = _has_quantum_step(config) and config.quantum.problem == RANK_ALLOCATION
    if is_ranked and (lora.use_dora or lora.init_lora_weights != "default"):
        yield (phrase("config.rank_allocation_with_variant", setting=Setting(f"{key}.{named[0]}")))


def _missing_samplers(config: HasSections) -> Iterator[str]:
    """Yield a message for each sampler that this machine cannot use."""
    if not _has_quantum_step(config) or config.quantum.answer != SAMPLER:
        return
    for key, name in config.quantum.samplers():
        try:
            check_sampler(name)
        except (ValueError, MissingPackageError, MissingSecretError) as error:
            setting = Setting(f"quantum.{key}")
            yield phrase("config.setting_says", setting=setting, reason=error)


def _comes_too_late(config: HasSections) -> bool:
    is_about_data = config.quantum.problem == DATA_SELECTION and config.quantum.answer == SAMPLER
    return is_about_data and config.quantum.background and config.training.num_epochs == 1


def _longer_than_the_model_sees(model: ModelConfig, data: DataConfig) -> Iterator[str]:
    longest = model.embedded.max_positions
    if model.name == "embedded" and data.max_length > longest:
        yield (
            phrase("config.max_length_exceeds_model", max_length=data.max_length, longest=longest)
        )


def _balance_of_a_stream(data: DataConfig) -> Iterator[str]:
    if data.streaming and data.balance_by:
        yield (phrase("config.balance_with_streaming"))


def _web_addresses(config: HasSections) -> Iterator[str]:
    for key in ("model.name", "data.path", "data.eval_path"):
        value = attrgetter(key)(config)
        if value is not None and _URL.match(value):
            yield (phrase("config.web_address_given", key=Setting(key), value=format_value(value)))
