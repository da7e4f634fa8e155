"""What a model is to the loop: how to feed it and how to read its loss.

To add a kind of model: a subclass of `ModelAdapter` in a file here, and one line in `ADAPTERS`.
"""

import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.lazy import lazy_names
from infrastructure.core.lookup import look_up
from infrastructure.training.model_adapters.base_adapter import ModelAdapter as ModelAdapter
from infrastructure.training.model_adapters.standard_adapter import (
    StandardModelAdapter as StandardModelAdapter,
)
from infrastructure.training.model_adapters.tactical_mappo_adapter import (
    TacticalMappoAdapter as TacticalMappoAdapter,
)
from infrastructure.training.models.registry import MODELS
from infrastructure.training.models.source import registered_name

ADAPTERS: dict[str, type[ModelAdapter]] = {
    "standard": StandardModelAdapter,
    "tactical_mappo": TacticalMappoAdapter,
}

_LATER = dict.fromkeys(("DialogueModelAdapter", "MultimodalModelAdapter"), "adapters")
__getattr__ = lazy_names(__name__, {}, _LATER)


def adapter_name(model_config: ModelConfig) -> str:
    """A registered model says which adapter it needs; any other has the configured one."""
    name = registered_name(model_config.name)
    return MODELS[name].adapter if name in MODELS else model_config.adapter


def get_model_adapter(
    name: str,
    model_config: ModelConfig,
    training_config: TrainingConfig,
    device: torch.device | str = "cpu",
) -> ModelAdapter:
    """The adapter called `name`.

    Raises:
        ValueError: there is no such adapter; suggests the nearest one.
    """
    adapter = look_up("model adapter", name, ADAPTERS)
    return adapter(model_config, training_config, torch.device(device))
