"""Settings that are right by themselves and cannot hold together. Checked when a run starts."""

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
from infrastructure.core.optional import is_installed

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


class HasSections(Protocol):
    """What is looked at: some sections and switches of a configuration."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    quantum: QuantumConfig
    enable_gpu_optimization: bool


def contradictions(config: HasSections) -> Iterator[str]:
    """A sentence, with the remedy, for each contradiction between sections."""
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
    """A sentence where there cannot be a GPU for each of several processes, or for extensions that
    add weights, `adding`."""
    if adding and num_processes not in (1, "auto"):
        yield on_several_processes(adding, num_processes)
    if num_processes in (1, "auto") or device == "cpu":
        return
    if device.startswith("cuda:"):
        yield (
            f"num_processes = {num_processes} takes a GPU for each process, and device = {device}"
            " names one: say device cuda"
        )
    named = (cuda_visible_devices or "").split(",")
    if cuda_visible_devices and len(named) < int(num_processes):
        yield (
            f"num_processes = {num_processes} takes a GPU for each process, and"
            f" cuda_visible_devices names {len(named)}: name as many"
        )


def place_among_runs(place: str | None, output_dir: str) -> Iterator[str]:
    """A sentence where copies would lie in the folder that they are copies of."""
    if place is None or ("://" in place and not place.startswith("file://")):
        return
    folder = Path(place.removeprefix("file://").removeprefix("drive:")).expanduser().absolute()
    runs = Path(output_dir).expanduser().absolute()
    if Path(os.path.normpath(folder)).is_relative_to(os.path.normpath(runs)):
        yield (
            f"backup.place = {format_value(place)} lies in output_dir ({output_dir}), where the"
            " runs are: copies there are lost with them; name a folder elsewhere, best on another"
            " disk"
        )


def lora_in_passing(model: ModelConfig, settings: Collection[str], place: str) -> Iterator[str]:
    """A sentence where a setting of LoRA switches it on beside new weights, which stay random.

    Args:
        settings: canonical keys that were given.
        place: where the one of LoRA was.
    """
    is_new = model.name == "embedded" and model.lora_config is not None
    if is_new and "model.lora_config" not in settings:
        yield (
            f"{place} switches LoRA on, which freezes the model's own weights, and those of the"
            " embedded model are new and random: leave it out to train all of them, or name a"
            " trained model as model.name; where it is meant, give model.lora_config, too"
        )


def lora_beside_new_weights(model: ModelConfig, is_model_named: bool) -> Iterator[str]:
    """A sentence where LoRA is to train beside weights that are new because no model was named."""
    if model.name == "embedded" and model.lora_config is not None and not is_model_named:
        yield (
            "LoRA freezes the model's own weights, and without model.name those are new and"
            " random: the model will hardly learn. Name a trained model as model.name, or leave"
            " LoRA out"
        )


def testing_off(enable_testing: bool, testing_interval: float | None) -> Iterator[str]:
    """A sentence where checks are asked for again and again, and switched off."""
    if testing_interval is not None and not enable_testing:
        yield (
            f"testing_interval = {format_value(testing_interval)} has no effect, because"
            " enable_testing is off: switch that on, or leave it out"
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
        yield (
            "training.compile_mode auto measures whether compiling pays, and"
            " enable_gpu_optimization is off: switch that on, or name a mode"
        )


def _no_best(training: TrainingConfig) -> Iterator[str]:
    """A sentence where `training.best_metric` is nothing that an evaluation gives."""
    name, own = training.best_metric, training.metrics
    if name not in MEASURES and name not in own:
        known = [*MEASURES, *own]
        yield (
            f"training.best_metric: {unknown_name('measure', name, known)}; one of your own goes"
            " into training.metrics, too"
        )
    elif name not in MEASURES and training.best_metric_mode == "auto":
        yield (
            f"training.best_metric {name} is a metric of your own: say with"
            " training.best_metric_mode min or max which way is better"
        )
    if training.best_needs_answers and training.validation_prompts == 0:
        yield (
            f"training.best_metric {name} is of answers, and training.validation_prompts is 0:"
            " answer some prompts, or choose by the loss"
        )
    if name in OF_TORCHMETRICS and not is_installed("torchmetrics"):
        yield f"training.best_metric {name} needs a package: pip install torchmetrics"


def _nothing_to_decide(config: HasSections) -> Iterator[str]:
    """A sentence where the quantum step has nothing that it could choose from."""
    if not _has_quantum_step(config):
        return
    if config.quantum.problem == DATA_SELECTION and config.data.streaming:
        yield (
            "quantum.problem data_selection looks at examples before the training, and"
            " data.streaming reads them while it goes on: switch one of them off"
        )
    answers = (SAMPLER, *BASELINES[config.quantum.problem])
    if config.quantum.answer not in answers:
        yield f"quantum.answer: {unknown_name('answer', config.quantum.answer, answers)}"
    if config.quantum.problem == DATA_SELECTION and config.quantum.data_budget == 1:
        yield (
            "quantum.data_budget 1 keeps every example, and there is nothing to choose: give a"
            " smaller share, or leave the quantum step out"
        )
    if config.quantum.problem == RANK_ALLOCATION and config.quantum.rank_budget == 1:
        yield (
            "quantum.rank_budget 1 keeps every component, and there is nothing to choose: give a"
            " smaller share, or leave the quantum step out"
        )
    if _comes_too_late(config):
        yield (
            "quantum.background answers while the training goes on, another choice of examples"
            " counts from the next epoch on, and training.num_epochs is 1: switch it off, or train"
            " longer"
        )
    if config.quantum.target == "validation" and not config.data.holds_out:
        yield (
            "quantum.target validation takes the held-out rows, and nothing is held out: set"
            " data.validation_split or data.eval_path, or take the target pool"
        )
    if config.quantum.problem == RANK_ALLOCATION and config.model.lora_config is None:
        yield (
            "quantum.problem rank_allocation chooses among the components of LoRA, and there is no"
            " model.lora_config: give one, or another problem"
        )


def _curriculum(config: HasSections) -> Iterator[str]:
    """A sentence for what a curriculum cannot be put together with."""
    training = config.training
    if training.strategy != CURRICULUM:
        return
    if config.data.streaming:
        yield (
            "training.strategy curriculum sorts the examples before the training, and"
            " data.streaming reads them while it goes on: switch it off"
        )
    if _has_quantum_step(config) and config.quantum.problem == DATA_SELECTION:
        yield (
            "training.strategy curriculum and quantum.problem data_selection both choose the"
            " examples of an epoch: leave one of them out"
        )
    if training.early_stopping_patience is not None:
        yield (
            "training.early_stopping_patience could end a curriculum before its last stage: leave"
            " it out"
        )
    if training.curriculum_by == "task" and len(training.curriculum_order) < 2:
        yield (
            "training.curriculum_by task takes a stage for each task: name two or more of them in"
            " training.curriculum_order, from easy to hard"
        )


def _quantization_aware(config: HasSections) -> Iterator[str]:
    """A sentence for what cannot train with weights that are rounded in each forward pass."""
    model, training = config.model, config.training
    if model.quantization_aware is None:
        return
    key = f"model.quantization_aware {model.quantization_aware}"
    if model.lora_config is not None:
        yield (
            f"{key} rounds the weights that train, and model.lora_config trains matrices beside"
            " them: leave one of them out"
        )
    if model.quantization is not None:
        yield (
            f"{key} rounds the weights that train, and model.quantization {model.quantization}"
            " freezes them: leave one of them out"
        )
    if model.backend == "unsloth":
        yield f"{key} is torchao's, and model.backend unsloth has layers of its own: leave it out"
    if training.strategy_for(model) in STACKWISE:
        yield f"{key} rounds all layers, and stack-wise training has forms of its own: leave it out"


def _lora_variants(config: HasSections) -> Iterator[str]:
    """A sentence for each variant of LoRA that PEFT, or another setting, does not allow."""
    lora, quantization = config.model.lora_config, config.model.quantization
    if lora is None:
        return
    key = "model.lora_config"
    if lora.init_lora_weights == "pissa" and quantization is not None:
        yield (
            f"{key}.init_lora_weights pissa takes a part out of the weights, which"
            f" model.quantization {quantization} has rounded already: take loftq with 4bit, or"
            " leave model.quantization out"
        )
    if lora.init_lora_weights == "pissa" and config.model.name == "embedded":
        yield (
            f"{key}.init_lora_weights pissa begins with the largest part of trained weights, and"
            " the embedded model is new: name a trained model, or leave it out"
        )
    if lora.init_lora_weights == "loftq" and quantization != "4bit":
        yield (
            f"{key}.init_lora_weights loftq makes up for what 4 bits have rounded: give"
            " model.quantization 4bit, or leave it out"
        )
    if lora.use_dora and lora.init_lora_weights != "default":
        yield (
            f"{key}.use_dora measures the weights' lengths before {lora.init_lora_weights} changes"
            " them: leave one of them out"
        )
    if lora.init_lora_weights == "pissa" and lora.dropout:
        yield (
            f"{key}.init_lora_weights pissa puts the largest part of the weights into LoRA, and"
            f" {key}.dropout would drop from it: leave one of them out"
        )
    named = [name for name, is_on in variants_of(lora).items() if is_on]
    if config.model.backend == "unsloth" and named:
        yield (
            f"{key}.{named[0]} is by PEFT alone, and model.backend unsloth has LoRA matrices of"
            " its own: set model.backend transformers, or leave it out"
        )
    is_ranked = _has_quantum_step(config) and config.quantum.problem == RANK_ALLOCATION
    if is_ranked and (lora.use_dora or lora.init_lora_weights != "default"):
        yield (
            "quantum.problem rank_allocation takes components of LoRA away, and with"
            f" {key}.{named[0]} they hold a part of the model itself: leave one of them out"
        )


def _missing_samplers(config: HasSections) -> Iterator[str]:
    """A sentence for each sampler that this machine cannot use."""
    if not _has_quantum_step(config) or config.quantum.answer != SAMPLER:
        return
    for key, name in config.quantum.samplers():
        try:
            check_sampler(name)
        except (ValueError, MissingPackageError, MissingSecretError) as error:
            yield f"quantum.{key}: {error}"


def _comes_too_late(config: HasSections) -> bool:
    is_about_data = config.quantum.problem == DATA_SELECTION and config.quantum.answer == SAMPLER
    return is_about_data and config.quantum.background and config.training.num_epochs == 1


def _longer_than_the_model_sees(model: ModelConfig, data: DataConfig) -> Iterator[str]:
    longest = model.embedded.max_positions
    if model.name == "embedded" and data.max_length > longest:
        yield (
            f"data.max_length {data.max_length} is more than the embedded model can see: "
            f"raise model.embedded.max_positions ({longest}) or lower data.max_length"
        )


def _balance_of_a_stream(data: DataConfig) -> Iterator[str]:
    if data.streaming and data.balance_by:
        yield (
            "data.balance_by draws from all rows at once, which data.streaming cannot: set one of"
            " the two"
        )


def _web_addresses(config: HasSections) -> Iterator[str]:
    for key in ("model.name", "data.path", "data.eval_path"):
        value = attrgetter(key)(config)
        if value is not None and _URL.match(value):
            yield (
                f"{key} = {format_value(value)} is a web address: download it and give the path,"
                " or give its OWNER/NAME on the Hugging Face Hub"
            )
