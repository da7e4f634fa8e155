"""Models that are neither on the Hub nor in a folder: any `torch.nn.Module`, by name.

To add one in the package, add a line to `MODELS` and its name to `config/registries.py`. From
outside, use `register_model`. The worked example is `tactical_mappo`: its module and its examples
are in tactical_mappo.py, its loss is in model_adapters/tactical_mappo_adapter.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from infrastructure.config.registries import REGISTERED_MODELS
from infrastructure.core.errors import InputError
from infrastructure.models.tactical_mappo import EnvironmentSeeds, build_tactical_mappo


@dataclass(frozen=True)
class ModelEntry:
    """The construction of a registered model, and the source of its batches.

    Attributes:
        build: creates the module. Its weights come from torch's global generator, which is already
            seeded.
        adapter: name of the ModelAdapter for its batches and its loss.
        data_source: creates the model's own examples from a seed. None: it reads data files.
    """

    build: Callable[[], torch.nn.Module]
    adapter: str
    data_source: Callable[[int], Any] | None = None


MODELS: dict[str, ModelEntry] = {
    "tactical_mappo": ModelEntry(build_tactical_mappo, "tactical_mappo", EnvironmentSeeds),
}


def register_model(name: str, entry: ModelEntry) -> None:
    """Make `entry` available as `model.name: <name>`.

    Raises:
        ValueError: the name is taken, or could be mistaken for a path or a Hub name.
    """
    if name in MODELS or name == "embedded":
        raise InputError("models.model_name_taken", name=name)
    if not name.replace("-", "_").isidentifier():
        raise InputError("models.model_name_invalid", name=name)
    MODELS[name] = entry
    REGISTERED_MODELS.add(name)
