"""Model adapters, which prepare a model's inputs and compute its loss for the training loop.

To add a kind of model, use `register_adapter(name, class)` with a subclass of `ModelAdapter`, an
entry point in the group "temper.adapters", or its address, `model.adapter: module:Class`.
"""

from collections.abc import Callable

import torch

from infrastructure.config import registries
from infrastructure.config.base import ConfigurationError
from infrastructure.config.field_help import format_value
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting
from infrastructure.core.registry import Registry
from infrastructure.data.preparation.plan import pictures_in
from infrastructure.models.registry import MODELS
from infrastructure.models.source import (
    registered_name,
)
from infrastructure.models.token_functions import CROSS_ENTROPY
from infrastructure.training.model_adapters.base_adapter import ModelAdapter as ModelAdapter
from infrastructure.training.model_adapters.dialogue_adapter import (
    DialogueModelAdapter as DialogueModelAdapter,
)
from infrastructure.training.model_adapters.multimodal_adapter import (
    MultimodalModelAdapter as MultimodalModelAdapter,
)
from infrastructure.training.model_adapters.standard_adapter import (
    StandardModelAdapter as StandardModelAdapter,
)

ADAPTERS: Registry[Callable[..., ModelAdapter]] = registries.ADAPTERS
ADAPTERS.provide(
    {
        "standard": StandardModelAdapter,
        "dialogue": DialogueModelAdapter,
        "multimodal": MultimodalModelAdapter,
    },
    ModelAdapter,
)
TEXT_ADAPTERS = ("standard", "dialogue")


def adapter_name(model_config: ModelConfig, data_config: DataConfig | None = None) -> str:
    """Return the name of the adapter for a model.

    A registered model names its own adapter. For other models, it is the configured adapter. If
    "auto" is configured, the first rows of the data decide.

    Raises:
        ValueError: the rows contain images but the adapter is for text, or a registered model needs
            a different adapter.
    """
    registered, wanted = registered_name(model_config.name), model_config.adapter
    name = MODELS[registered].adapter if registered in MODELS else wanted
    if wanted not in ("auto", "standard", name):  # "standard" used to be the default
        raise InputError(
            "models.registered_model_adapter",
            adapter=wanted,
            model=model_config.name,
            own=name,
        )
    if name not in ("auto", *TEXT_ADAPTERS) or registered in MODELS:
        return name
    shown = pictures_in(data_config or DataConfig())
    if shown and name != "auto":
        raise InputError("models.text_adapter_for_images", name=name, shown=shown)
    if name != "auto":
        return name
    return "multimodal" if shown else "standard"


def register_adapter(name: str, adapter: Callable[..., ModelAdapter]) -> None:
    """Register a name for `model.adapter` that creates an adapter by calling `adapter`.

    The arguments of the call are `(model_config, training_config, device)`. The registered adapter
    takes precedence over a built-in one of that name.

    Raises:
        ValueError: the name belongs to another registered adapter, or `adapter` lacks a method.
    """
    ADAPTERS.register(name, adapter)


def get_model_adapter(
    name: str,
    model_config: ModelConfig,
    training_config: TrainingConfig,
    device: torch.device | str = "cpu",
) -> ModelAdapter:
    """Create the adapter called `name`.

    Raises:
        ValueError: there is no such adapter (the message suggests the nearest one), or it cannot be
            used.
    """
    name = adapter_name(model_config) if name == "auto" else name
    made: ModelAdapter = ADAPTERS.make(name, model_config, training_config, torch.device(device))
    return made


def check_token_functions(adapter: ModelAdapter, training_config: TrainingConfig) -> None:
    """Raise if the configuration has a loss or metrics that the adapter would ignore.

    Raises:
        ConfigurationError: the adapter ignores a setting. The message names it.
    """
    own = {"loss": training_config.loss != CROSS_ENTROPY, "metrics": training_config.token_metrics}
    for name, is_given in own.items():
        if is_given and not adapter.takes_token_functions:
            raise ConfigurationError(
                "models.token_function_no_effect",
                setting=Setting(f"training.{name}", format_value(getattr(training_config, name))),
                adapter=type(adapter).__name__,
            )
