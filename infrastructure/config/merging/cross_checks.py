"""Settings that are right by themselves and cannot hold together. Checked when a run starts.

One that cannot take effect is refused where it is not the default, and told where somebody wrote
the default down: files are shared between runs, and nobody is misled by it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from infrastructure.config.auto import attention_for
from infrastructure.config.base import ConfigurationError
from infrastructure.config.field_help import show
from infrastructure.config.merging.precedence import Layer, Source
from infrastructure.config.merging.stackwise_cross_checks import stackwise_misfits, unused_settings
from infrastructure.config.sampler_needs import check_sampler
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import EmbeddedModelConfig, ModelConfig
from infrastructure.config.sections.quantum_config import (
    ASKED_BY,
    BASELINES,
    DATA_SELECTION,
    RANK_ALLOCATION,
    SAMPLER,
    QuantumConfig,
)
from infrastructure.config.sections.resource_config import (
    MemoryConfig,
    QuantumResources,
    ResourcesConfig,
)
from infrastructure.config.sections.training_config import QUANTUM, TrainingConfig
from infrastructure.core.errors import MissingPackageError, MissingSecretError
from infrastructure.core.lookup import unknown_name

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


class HasSections(Protocol):
    """What is looked at: some sections and switches of a configuration."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    backup: BackupConfig
    memory: MemoryConfig
    quantum: QuantumConfig
    resources: ResourcesConfig
    enable_gpu_optimization: bool
    enable_memory_optimization: bool
    max_memory_percent: float


SourceOf = Callable[[str], Source]
Condition = Callable[[HasSections], Any]


class _Defaults(NamedTuple):
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    backup: BackupConfig = BackupConfig()
    memory: MemoryConfig = MemoryConfig()
    quantum: QuantumConfig = QuantumConfig()
    resources: ResourcesConfig = ResourcesConfig()
    max_memory_percent: float = 85.0


@dataclass(frozen=True)
class Unused:
    """A setting without effect.

    Attributes:
        condition: when it has none.
        because: why.
        remedy: what to do.
    """

    key: str
    condition: Condition
    because: str
    remedy: str = "leave it out"


def _is_embedded(config: HasSections) -> bool:
    return config.model.name == "embedded"


def _holds_nothing_out(config: HasSections) -> bool:
    return config.data.eval_path is None and config.data.validation_split == 0


def _is_sgd(config: HasSections) -> bool:
    return config.training.optimizer == "sgd"


def _is_standard(config: HasSections) -> bool:
    return config.training.strategy == "standard"


def _asks_nothing(config: HasSections) -> bool:
    return QUANTUM not in config.training.extensions


def _asks_another(problem: str) -> Condition:
    """Whether a quantum step is asked for, and it decides something else."""
    return lambda config: not _asks_nothing(config) and config.quantum.problem != problem


def _asks_no_sampler(config: HasSections) -> bool:
    return not _asks_nothing(config) and config.quantum.answer != SAMPLER


_NO_QUANTUM_STEP = (
    "no quantum step is made",
    "add quantum to training.enabled_extensions, or leave it out",
)
_NO_BETAS = "training.optimizer sgd has no betas"
_ALIKE = "training.strategy standard trains all layers alike", "use finetune or auto"
UNUSED = (
    *(
        Unused(
            f"model.embedded.{name}",
            lambda config: not _is_embedded(config),
            "it shapes the embedded model, and model.name is another",
        )
        for name in EmbeddedModelConfig.model_fields
    ),
    Unused("model.trust_remote_code", _is_embedded, "the embedded model comes without code"),
    Unused(
        "data.validation_split",
        lambda config: config.data.eval_path is not None and config.data.validation_split > 0,
        "data.eval_path is held out instead",
    ),
    Unused(
        "data.buffer_size",
        lambda config: not config.data.streaming,
        "it is the buffer of data.streaming, which is off",
        "switch that on, or leave it out",
    ),
    *(
        Unused(
            f"backup.{name}",
            lambda config: config.backup.place is None,
            "nothing is copied without backup.place",
            "give that too, or leave it out",
        )
        for name in BackupConfig.model_fields
        if name != "place"
    ),
    Unused(
        "training.gradient_checkpointing_mode",
        lambda config: not config.training.gradient_checkpointing,
        "training.gradient_checkpointing is off",
        "switch that on, or leave it out",
    ),
    Unused(
        "training.gradient_checkpointing_mode",
        lambda config: config.model.backend == "unsloth",
        "model.backend unsloth has a way of its own",
    ),
    Unused("training.adam_beta1", _is_sgd, _NO_BETAS),
    Unused("training.adam_beta2", _is_sgd, _NO_BETAS),
    Unused(
        "training.keep_best",
        _holds_nothing_out,
        "nothing is held out to measure",
        "set data.validation_split or data.eval_path",
    ),
    Unused(
        "training.early_stopping_patience",
        _holds_nothing_out,
        "nothing is held out to measure",
        "set data.validation_split or data.eval_path",
    ),
    Unused(
        "training.early_stopping_min_delta",
        lambda config: config.training.early_stopping_patience is None,
        "nothing stops early",
        "set training.early_stopping_patience",
    ),
    *(
        Unused(
            key,
            lambda config: not config.enable_memory_optimization,
            "enable_memory_optimization is off",
            "switch that on, or leave it out",
        )
        for key in (
            "memory.gpu_cache_size",
            "memory.cpu_memory_limit",
            "memory.cache_ttl",
            "max_memory_percent",
        )
    ),
    *(
        Unused(key, _asks_nothing, *_NO_QUANTUM_STEP)
        for section in (QuantumConfig, QuantumResources)
        for key in [f"{section.prefix}.{name}" for name in section.model_fields]
    ),
    *(
        Unused(
            f"quantum.{name}",
            _asks_another(problem),
            f"it is about {problem}, and quantum.problem is another",
        )
        for name, problem in ASKED_BY.items()
    ),
    *(
        Unused(
            f"resources.quantum.{name}",
            _asks_no_sampler,
            "quantum.answer takes a plain answer and asks no sampler",
        )
        for name in ("solver", "fallback", "timeout")
    ),
    Unused("quantum.background", _asks_no_sampler, "quantum.answer takes a plain answer, at once"),
    Unused("training.layerwise_lr_decay", _is_standard, *_ALIKE),
    Unused("training.unfreeze_interval", _is_standard, *_ALIKE),
)


def misfits(config: HasSections, source_of: SourceOf) -> Iterator[str]:
    """A sentence, with the remedy, for each contradiction between sections."""
    yield from _attention(config.model, config.training)
    yield from _longer_than_the_model_sees(config.model, config.data)
    yield from _web_addresses(config)
    yield from _unmeasured(config)
    yield from _nothing_to_decide(config)
    yield from _nobody_to_answer(config)
    yield from stackwise_misfits(config.model, config.data, config.training)
    for unused, value, is_default in _without_effect(config):
        if not is_default:
            yield f"{_told(unused, value, source_of)}: {unused.remedy}"


def unused_notes(config: HasSections, source_of: SourceOf) -> Iterator[str]:
    """A sentence for each default that somebody wrote down where it has no effect.

    None where the default is that nothing happens.
    """
    for unused, value, is_default in _without_effect(config):
        if value and is_default and source_of(unused.key).layer is not Layer.DEFAULT:
            yield _told(unused, value, source_of)


def several_processes(
    num_processes: int | str, device: str, cuda_visible_devices: str | None
) -> Iterator[str]:
    """A sentence where there cannot be a GPU for each of several processes."""
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


def testing_off(enable_testing: bool, testing_interval: float | None) -> Iterator[str]:
    """A sentence where checks are asked for again and again, and switched off."""
    if testing_interval is not None and not enable_testing:
        yield (
            f"testing_interval = {show(testing_interval)} has no effect, because enable_testing is"
            " off: switch that on, or leave it out"
        )


def _without_effect(config: HasSections) -> Iterator[tuple[Unused, Any, bool]]:
    of_stacks = [
        Unused(f"training.{name}", lambda config: True, because)
        for name, because in unused_settings(config.model, config.training)
    ]
    for unused in (*UNUSED, *of_stacks):
        if unused.condition(config):
            value = attrgetter(unused.key)(config)
            yield unused, value, value == attrgetter(unused.key)(_Defaults())


def _told(unused: Unused, value: Any, source_of: SourceOf) -> str:
    place = source_of(unused.key).place
    return f"{unused.key} = {show(value)} ({place}) has no effect, because {unused.because}"


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


def _nothing_to_decide(config: HasSections) -> Iterator[str]:
    """A sentence where the quantum step has nothing that it could choose from."""
    if _asks_nothing(config):
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
    if config.quantum.target == "validation" and _holds_nothing_out(config):
        yield (
            "quantum.target validation takes the held-out rows, and nothing is held out: set"
            " data.validation_split or data.eval_path, or take the target pool"
        )
    if config.quantum.problem == RANK_ALLOCATION and config.model.lora_config is None:
        yield (
            "quantum.problem rank_allocation chooses among the components of LoRA, and there is no"
            " model.lora_config: give one, or another problem"
        )


def _nobody_to_answer(config: HasSections) -> Iterator[str]:
    """A sentence for each sampler that could not be asked from this machine."""
    if _asks_nothing(config) or _asks_no_sampler(config):
        return
    for key, name in config.resources.quantum.samplers():
        try:
            check_sampler(name)
        except (ValueError, MissingPackageError, MissingSecretError) as error:
            yield f"resources.quantum.{key}: {error}"


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


def _web_addresses(config: HasSections) -> Iterator[str]:
    for key in ("model.name", "data.path", "data.eval_path"):
        value = attrgetter(key)(config)
        if value is not None and _URL.match(value):
            yield (
                f"{key} = {show(value)} is a web address: download it and give the path, or give "
                "its OWNER/NAME on the Hugging Face Hub"
            )
