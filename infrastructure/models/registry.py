"""Registry of models that are neither on the Hub nor in a folder: any `torch.nn.Module`.

Use `register_model` to add a model. A feature adds one with an address in the group
"temper.models", and registers its adapter under the same name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from infrastructure.config.registries import REGISTERED_MODELS
from infrastructure.core.errors import InputError
from infrastructure.core.features import loaded, plugins_of


@dataclass(frozen=True)
class ModelEntry:
    """How a registered model is created, and which adapter it uses.

    Attributes:
        build: creates the module. Its weights are initialized with torch's global random generator,
            which is already seeded.
        adapter: name of the ModelAdapter for its batches and its loss.
    """

    build: Callable[[], torch.nn.Module]
    adapter: str


def _build(address: str) -> torch.nn.Module:
    model: torch.nn.Module = loaded(address)()
    return model


MODELS: dict[str, ModelEntry] = {
    name: ModelEntry(partial(_build, address), adapter=name)
    for name, address in plugins_of("temper.models").items()
}


def register_model(name: str, entry: ModelEntry) -> None:
    """Register a model that `model.name: <name>` selects.

    Raises:
        ValueError: the name is taken, or could be mistaken for a path or a Hub name.
    """
    if name in MODELS or name == "embedded":
        raise InputError("models.model_name_taken", name=name)
    if not name.replace("-", "_").isidentifier():
        raise InputError("models.model_name_invalid", name=name)
    MODELS[name] = entry
    REGISTERED_MODELS.add(name)
