"""Checks, when a run starts, for settings that are valid alone but contradict each other."""

import os
import re
from collections.abc import Collection, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from infrastructure.config.auto import attention_for
from infrastructure.config.base import ConfigurationError
from infrastructure.config.field_help import format_value
from infrastructure.config.measures import MEASURES, OF_TORCHMETRICS
from infrastructure.config.merging.contradictions import all_contradictions, contradictions_in
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import (
    TrainingConfig,
)
from infrastructure.core.features import all_of
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import is_installed

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


def contradictions(config: Any) -> Iterator[str]:
    """Yield a message, with the remedy, for each contradiction between sections."""
    yield from _attention(config.model, config.training)
    yield from _longer_than_the_model_sees(config.model, config.data)
    yield from _web_addresses(config)
    yield from _no_best(config.training)
    yield from contradictions_in(all_contradictions(), config)
    for problems in all_of("checks"):
        yield from problems(config)


def several_processes(
    num_processes: int | str, device: str, cuda_visible_devices: str | None
) -> Iterator[str]:
    """Yield an error if the requested processes cannot each have a GPU."""
    if num_processes in (1, "auto") or device == "cpu":
        return
    if device.startswith("cuda:"):
        yield phrase(
            "config.processes_on_one_named_gpu", num_processes=num_processes, device=device
        )
    named = (cuda_visible_devices or "").split(",")
    if cuda_visible_devices and len(named) < int(num_processes):
        yield phrase(
            "config.too_few_visible_gpus",
            num_processes=num_processes,
            count=len(named),
        )


def place_among_runs(place: str | None, output_dir: str) -> Iterator[str]:
    """Yield a message if the backup destination is inside the directory of the runs."""
    if place is None or ("://" in place and not place.startswith("file://")):
        return
    folder = Path(place.removeprefix("file://").removeprefix("drive:")).expanduser().absolute()
    runs = Path(output_dir).expanduser().absolute()
    if Path(os.path.normpath(folder)).is_relative_to(os.path.normpath(runs)):
        yield phrase(
            "config.destination_inside_output_dir",
            place=format_value(place),
            output_dir=output_dir,
        )


def lora_in_passing(model: ModelConfig, settings: Collection[str], place: str) -> Iterator[str]:
    """Yield an error if a LoRA setting enables LoRA on new weights, which would then stay random.

    Args:
        settings: the canonical keys that the user has set.
        place: the source of the LoRA setting.
    """
    is_new = model.name == "embedded" and model.lora_config is not None
    if is_new and "model.lora_config" not in settings:
        yield phrase("config.lora_enabled_on_new_model", source=place)


def lora_beside_new_weights(model: ModelConfig, is_model_named: bool) -> Iterator[str]:
    """Yield an error if LoRA would be trained on random weights because no model was named."""
    if model.name == "embedded" and model.lora_config is not None and not is_model_named:
        yield phrase("config.lora_without_trained_model")


def _attention(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    try:
        attention_for(model, training)
    except ConfigurationError as error:
        yield str(error)


def _no_best(training: TrainingConfig) -> Iterator[str]:
    """Yield a message for each reason why `training.best_metric` cannot be used."""
    name, own = training.best_metric, training.metrics
    if name not in MEASURES and name not in own:
        known = [*MEASURES, *own]
        yield phrase(
            "config.unknown_best_metric",
            reason=unknown_name("measure", name, known),
        )
    elif name not in MEASURES and training.best_metric_mode == "auto":
        yield phrase("config.best_metric_without_mode", name=name)
    if name in OF_TORCHMETRICS and not is_installed("torchmetrics"):
        yield phrase("config.best_metric_needs_torchmetrics", name=name)


def _longer_than_the_model_sees(model: ModelConfig, data: DataConfig) -> Iterator[str]:
    longest = model.embedded.max_positions
    if model.name == "embedded" and data.max_length > longest:
        yield phrase("config.max_length_exceeds_model", max_length=data.max_length, longest=longest)


def _web_addresses(config: Any) -> Iterator[str]:
    for key in ("model.name", "data.path", "data.eval_path"):
        value = attrgetter(key)(config)
        if value is not None and _URL.match(value):
            yield phrase("config.web_address_given", key=Setting(key), value=format_value(value))
