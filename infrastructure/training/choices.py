"""Small decisions about a training that its configuration, model or data answers."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from infrastructure.config.auto import trains_from_scratch
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.model_adapters.base_adapter import DataSource
from infrastructure.training.models.registry import MODELS
from infrastructure.training.models.source import registered_name
from infrastructure.training.observers.run_observers import EarlyStopping


def early_stopping(config: TrainingConfig) -> list[Hook]:
    """The observer that the configuration asks for, if it does."""
    if config.early_stopping_patience is None:
        return []
    return [EarlyStopping(config.early_stopping_patience, config.early_stopping_min_delta)]


def adapter_name(model_config: ModelConfig) -> str:
    """A registered model says which adapter it needs; any other has the configured one."""
    name = registered_name(model_config.name)
    return MODELS[name].adapter if name in MODELS else model_config.adapter


def starts_from_scratch(model_config: ModelConfig) -> bool:
    """Whether the weights are new: the embedded model's, and a registered module's."""
    return trains_from_scratch(model_config) or model_config.name in MODELS


def polled(batches: Iterator[Any], poll: Callable[[], None]) -> Iterator[Any]:
    """The batches, with a call of `poll` before each."""
    with closing(batches):  # type: ignore[type-var]
        for batch in batches:
            poll()
            yield batch


def holds_out(data: DataSource) -> bool:
    """Whether there is anything to evaluate on."""
    with closing(data.evaluation_batches(1)) as batches:
        return next(batches, None) is not None
