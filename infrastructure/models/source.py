"""Lookup of what a model name refers to, before anything is loaded.

In this way, a wrong folder is reported within a second instead of after a download.
"""

from pathlib import Path

from infrastructure.config.auto import trains_from_scratch
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.models.model_path import EMBEDDED, refuse_file, refuse_missing
from infrastructure.models.registry import MODELS
from infrastructure.models.saved_model import (
    REGISTERED_MANIFEST,
    ModelSource,
    SourceKind,
    is_there,
    look_into,
    read_json,
)


def find_source(name: str) -> ModelSource:
    """Return the source that `name` refers to.

    It can be "embedded", a registered name, an existing folder, or a Hub name. A run directory
    stands for its `final/`. To use a folder that has the name of a registered model, write it as a
    path (`./name`).

    Raises:
        ValueError: the name looks like a path that does not exist, or the folder contains no model.
    """
    if name == EMBEDDED:
        return ModelSource(SourceKind.EMBEDDED, name)
    if name in MODELS:
        return ModelSource(SourceKind.REGISTERED, name)
    path = Path(name).expanduser()
    if is_there(path):
        refuse_file(path)
        return look_into(path.resolve())
    refuse_missing(name)
    return ModelSource(SourceKind.HUB, name)


def registered_name(name: str) -> str | None:
    """Return the name of a registered model, given that name or a folder with its saved weights.

    None if `name` refers to another kind of model, or to no model.
    """
    if name in MODELS:
        return name
    folder = Path(name).expanduser()
    for place in (folder, folder / "final"):
        manifest = place / REGISTERED_MANIFEST
        if is_there(place) and manifest.is_file():
            return str(read_json(manifest).get("model"))
    return None


def starts_from_scratch(model_config: ModelConfig) -> bool:
    """Return whether training starts with new weights.

    It does for the embedded model, and for a model that is given by its registered name.
    """
    return trains_from_scratch(model_config) or model_config.name in MODELS
