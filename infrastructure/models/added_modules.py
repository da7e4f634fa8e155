"""Modules with weights of their own that extensions add to a transformers model.

Forward hooks connect the modules to the model's parts. They are stored in a `ModuleDict` of the
model, so optimizer, clipping and checkpoints treat their parameters like all others. When the model
is saved, `extensions.json` describes the modules, and `extension_weights.safetensors` contains
their weights. The model's other files are the same as without added modules.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.utils.hooks import RemovableHandle

from infrastructure.config import registries
from infrastructure.core.errors import InputError
from infrastructure.core.files import write_json
from infrastructure.core.json_text import JsonObject
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import inner_model
from infrastructure.models.saved_model import EXTENSIONS_MANIFEST, read_json

ATTRIBUTE = "extension_modules"  # of the inner model; begins the names of all their weights
ADDED_WEIGHTS = "extension_weights.safetensors"


class AddedModule(torch.nn.Module, ABC):
    """Base class of modules that extensions add to a model.

    Attributes:
        kind: a name of letters, digits and "_", under which the module is saved and loaded.
    """

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def build(cls, model: torch.nn.Module, facts: JsonObject) -> Self:
        """Create a new module for `model` from the description `facts`.

        Weights are initialized with torch's global random generator.

        Raises:
            ValueError: the module does not fit this model.
        """

    @property
    @abstractmethod
    def facts(self) -> JsonObject:
        """A description from which `build` can create an equal module."""

    @abstractmethod
    def connect(self, model: torch.nn.Module) -> Sequence[RemovableHandle]:
        """Register the hooks that connect the module to the parts of the unwrapped `model`."""


class AddedModules(torch.nn.ModuleDict):
    """All modules that extensions have added to a model, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: dict[str, Sequence[RemovableHandle]] = {}


KINDS: dict[str, type[AddedModule]] = {}


def register_added_module(kind: type[AddedModule]) -> type[AddedModule]:
    """Register a class of added modules, so that saved models with them can be loaded.

    Also usable as a decorator.

    Raises:
        ValueError: the module's kind is not a valid identifier.
    """
    if not kind.kind.isidentifier():
        raise InputError("models.extension_kind_invalid", class_name=kind.__name__, kind=kind.kind)
    KINDS[kind.kind] = kind
    return kind


def attach(model: torch.nn.Module, module: AddedModule) -> None:
    """Add a module to `model`, in fp32 on the model's device.

    Raises:
        ValueError: the model already has a module of that kind.
    """
    inner: Any = inner_model(model)
    modules = getattr(inner, ATTRIBUTE, None)
    if modules is None:
        modules = AddedModules()
        setattr(inner, ATTRIBUTE, modules)
    if module.kind in modules:
        raise InputError("models.extension_already_attached", extension=module.kind)
    module.to(device=next(inner.parameters()).device, dtype=torch.float32)
    module.train(inner.training)
    modules[module.kind] = module
    modules.handles[module.kind] = module.connect(inner)


def detach(model: torch.nn.Module, kind: str) -> None:
    """Remove an added module from the model, which then computes as it did without this module."""
    inner: Any = inner_model(model)
    modules: AddedModules = getattr(inner, ATTRIBUTE)
    for handle in modules.handles.pop(kind):
        handle.remove()
    del modules[kind]
    if not len(modules):
        delattr(inner, ATTRIBUTE)


def added_modules(model: torch.nn.Module) -> dict[str, AddedModule]:
    """Return the modules that extensions have added to `model`, by kind."""
    modules = getattr(inner_model(model), ATTRIBUTE, None)
    return {} if modules is None else cast(dict[str, AddedModule], dict(modules.items()))


def is_added(name: str) -> bool:
    """Return whether a parameter or buffer with this name belongs to an added module."""
    return f".{ATTRIBUTE}." in f".{name}"


def facts_of_added(model: torch.nn.Module) -> JsonObject:
    """Return the descriptions of all added modules by kind, as JSON values."""
    return {kind: module.facts for kind, module in added_modules(model).items()}


def save_added(model: torch.nn.Module, folder: Path) -> None:
    """Save the modules added to `model` next to its files, if there are any."""
    modules = added_modules(model)
    if not modules:
        return
    tensors = {
        f"{kind}.{name}": tensor.detach().cpu().contiguous()
        for kind, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    save_file(tensors, folder / ADDED_WEIGHTS)
    write_json(
        folder / EXTENSIONS_MANIFEST,
        {
            "note": phrase("models.extension_weights_note"),
            "extensions": facts_of_added(model),
        },
    )


def attach_described(model: torch.nn.Module, described: JsonObject) -> None:
    """Add the modules that a run's record describes, so that its checkpoints can be loaded.

    Args:
        described: the result of `fitting.describe_added`. Modules that `model` already has are
            kept.

    Raises:
        ValueError: a kind is not registered.
    """
    extensions = cast(JsonObject, described.get("extensions") or {})
    for kind, facts in extensions.items():
        if kind not in added_modules(model):
            attach(model, _kind_of(kind, "the run").build(model, cast(JsonObject, facts)))


def load_added(model: torch.nn.Module, folder: Path) -> None:
    """Load the added modules that are saved in `folder`, if there are any, and add them to `model`.

    Raises:
        ValueError: the modules are not registered, missing, damaged, or from another model. The
            message names the file.
    """
    manifest = folder / EXTENSIONS_MANIFEST
    if not manifest.is_file():
        return
    described = read_json(manifest).get("extensions")
    if not isinstance(described, dict):
        raise InputError("models.extension_manifest_invalid", manifest=manifest)
    tensors = _read(folder / ADDED_WEIGHTS)
    for kind, facts in described.items():
        module = _kind_of(kind, manifest).build(model, cast(JsonObject, facts))
        own = {
            n.removeprefix(f"{kind}."): t for n, t in tensors.items() if n.startswith(f"{kind}.")
        }
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                "models.extension_weights_mismatch",
                weights=folder / ADDED_WEIGHTS,
                manifest=manifest,
                reason=reason,
            ) from error
        attach(model, module)


def _read(file: Path) -> Mapping[str, torch.Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError("models.extension_weights_unreadable", file=file, error=error) from error


def _kind_of(kind: str, place: object) -> type[AddedModule]:
    if kind not in KINDS and ":" not in kind and registries.EXTENSIONS.is_here(kind):
        registries.EXTENSIONS.get(kind)  # importing it registers its module
    if kind not in KINDS:
        raise InputError(
            "models.extension_not_registered",
            source=place,
            reason=unknown_name("extension", kind, KINDS),
        )
    return KINDS[kind]


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """Return the layers of a decoder, in order from the input to the output.

    Raises:
        ValueError: the layers cannot be identified.
    """
    inner = cast(Any, inner_model(model))
    config = getattr(inner, "config", None)
    text = config.get_text_config() if config is not None else None
    count = getattr(text, "num_hidden_layers", None)
    lists = [m for m in decoder(model).children() if isinstance(m, torch.nn.ModuleList)]
    fitting = [one for one in lists if len(one) == count]
    if len(fitting) != 1:
        raise InputError("models.layers_not_identified", name=type(inner).__name__)
    return fitting[0]


def decoder(model: torch.nn.Module) -> torch.nn.Module:
    """Return the part of a language model that computes hidden states from tokens."""
    inner = cast(Any, inner_model(model))
    part: torch.nn.Module = inner.get_decoder() if hasattr(inner, "get_decoder") else inner
    return part


def hidden_size(model: torch.nn.Module) -> int:
    """Return the width of a language model's hidden states."""
    return int(cast(Any, inner_model(model)).config.get_text_config().hidden_size)
