"""Models that are too large for one process: the layers exist, but the weights stay on disk.

Each weight is replaced by a parameter of its shape that takes no memory and contains NaN. When the
model is sharded, each process reads its own rows of each weight.
"""

import copy
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from infrastructure.backup.format.tensor_bytes import DTYPES
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import parse_json
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.core.process_memory import give_back_large_blocks
from infrastructure.models.saved_model import ModelSource, SourceKind, weight_files
from infrastructure.models.transformers_backend import LoadOptions, auto_class

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LIES_IN = "lies_in"  # attribute of a parameter that stands for a weight on disk


@dataclass(frozen=True)
class WeightOnDisk:
    """The location of a weight in a safetensors file, stored row by row from byte `begin` on."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    def rows(self, first: int, count: int) -> torch.Tensor:
        """Read `count` rows (along the first dimension) from row `first` on.

        Raises:
            OSError: the file is too short.
        """
        length = math.prod(self.shape[1:]) * self.dtype.itemsize
        content = bytearray(count * length)
        with self.file.open("rb") as file:
            file.seek(self.begin + first * length)
            if file.readinto(content) != len(content):
                raise OSError(phrase("models.weight_file_truncated", file=self.file))
        empty = torch.empty(0, dtype=self.dtype)
        part = torch.frombuffer(content, dtype=self.dtype) if content else empty
        return part.reshape(count, *self.shape[1:])


def weights_in(file: Path) -> Iterator[tuple[str, WeightOnDisk]]:
    """Yield the name and location of each weight in a valid safetensors file."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = parse_json(opened.read(length))
    assert isinstance(header, dict)
    entries: dict[str, Any] = {**header}
    for name, entry in entries.items():
        if name != "__metadata__":
            begin = 8 + length + entry["data_offsets"][0]
            yield name, WeightOnDisk(file, DTYPES[entry["dtype"]], tuple(entry["shape"]), begin)


def layers_on_disk(
    source: ModelSource, config: "PreTrainedConfig", options: LoadOptions
) -> torch.nn.Module:
    """Create a model from a folder or the Hub, and leave its weights on disk.

    Raises:
        ValueError: the weights in the files differ from those of the model, because transformers
            converts weights when it loads a model as a whole.
    """
    give_back_large_blocks()  # each weight is freed before the next one is made
    model = _layers(config, options)
    folder = source.folder if source.kind is SourceKind.FOLDER else _fetched(source, options)
    there = {name: one for file in weight_files(folder) for name, one in weights_in(file)}
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    made: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for parameter, aliases in names.items():
        same = [there[name] for name in aliases if name in there]
        stored, others = same[0] if same else None, same[1:]
        if stored is None or others or stored.shape != tuple(parameter.shape):
            what = (
                "lack"
                if stored is None
                else "repeat"
                if others
                else phrase("models.stored_in_other_shape")
            )
            raise InputError(
                "models.layers_not_readable_singly",
                location=source.location,
                problem=what,
                name=aliases[0],
            )
        made[parameter] = _standing_for(stored, parameter, options)
    replace_parameters(model, made)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(options.device)
    return model


def weight_bytes(source: ModelSource, options: LoadOptions) -> int:
    """Return the bytes that a model's weights will take once loaded, from a folder or the Hub."""
    folder = source.folder if source.kind is SourceKind.FOLDER else _fetched(source, options)
    stored = (one for file in weight_files(folder) for _, one in weights_in(file))
    return sum(math.prod(one.shape) for one in stored) * options.dtype.itemsize


def _fetched(source: ModelSource, options: LoadOptions) -> Path:
    hub = require("huggingface_hub", "models.load_from_hub")
    revision = source.revision or options.revision
    return Path(
        hub.snapshot_download(
            source.location, revision=revision, allow_patterns=["*.safetensors", "*.json"]
        )
    )


def _layers(config: "PreTrainedConfig", options: LoadOptions) -> torch.nn.Module:
    """Create the layers, with parameters on the meta device and buffers on the CPU."""
    accelerate = require("accelerate", "models.load_in_parts")
    with accelerate.init_empty_weights(include_buffers=False):
        model = _made(config, options)
    cast(Any, model).tie_weights()
    return model


def _made(config: "PreTrainedConfig", options: LoadOptions) -> torch.nn.Module:
    transformers = require("transformers", "models.load_model")
    attention = {} if options.attention is None else {"attn_implementation": options.attention}
    model: torch.nn.Module = getattr(transformers, auto_class(options)).from_config(
        config, dtype=options.dtype, trust_remote_code=options.trust_remote_code, **attention
    )
    return model


def _standing_for(
    stored: WeightOnDisk, parameter: torch.nn.Parameter, options: LoadOptions
) -> torch.nn.Parameter:
    nothing = torch.full((), math.nan, dtype=parameter.dtype, device=options.device)
    made = torch.nn.Parameter(nothing.expand(parameter.shape), parameter.requires_grad)
    setattr(made, LIES_IN, stored)
    return made


def lies_in(parameter: torch.Tensor) -> WeightOnDisk | None:
    """Return where the weight of a placeholder parameter is on disk; None for a real weight."""
    stored: WeightOnDisk | None = getattr(parameter, LIES_IN, None)
    return stored


def replace_parameters(
    model: torch.nn.Module, made: Mapping[torch.nn.Parameter, torch.nn.Parameter]
) -> None:
    """Replace parameters of the model wherever they are used, as mapped by `made`."""
    for module in model.modules():
        for name, owned in module._parameters.items():
            if owned is not None and owned in made:
                module._parameters[name] = made[owned]


def taken_out(model: torch.nn.Module) -> dict[str, WeightOnDisk | torch.Tensor]:
    """Move all parameters to the meta device, and return their weights by name.

    Each weight is returned as a location on disk or as a tensor. If no weight of the model is on
    disk, change nothing and return {}.
    """
    named = dict(model.named_parameters())
    if not any(map(lies_in, named.values())):
        return {}
    on_meta = {
        p: torch.nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in named.values()
    }
    replace_parameters(model, on_meta)
    return {name: lies_in(p) or p.detach() for name, p in named.items()}


def put_back(
    model: torch.nn.Module, weights: Iterable[tuple[str, torch.Tensor]], folder: Path
) -> None:
    """Replace the placeholders of a model by trained weights, one after the other.

    The weights are written to unnamed files in `folder`, which disappear when nothing uses them.
    Placeholders of untrained weights move to the meta device.
    """
    parameters = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    made: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for name, weight in weights:
        target = parameters.get(name, buffers.get(name))
        assert target is not None, name
        if isinstance(target, torch.nn.Parameter) and lies_in(target) is not None:
            made[target] = torch.nn.Parameter(_in_a_file(weight, folder), target.requires_grad)
        else:
            target.detach().copy_(weight)
    for parameter in parameters.values():
        if lies_in(parameter) is not None and parameter not in made:
            made[parameter] = torch.nn.Parameter(parameter.detach().to("meta"), False)
    replace_parameters(model, made)


def _in_a_file(weight: torch.Tensor, folder: Path) -> torch.Tensor:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".trained-") as file:
        lying = torch.from_file(file.name, shared=True, size=weight.numel(), dtype=weight.dtype)
    return lying.copy_(weight.flatten()).reshape(weight.shape)


def few_blocks(config: "PreTrainedConfig", options: LoadOptions) -> torch.nn.Module:
    """Create a model of the same kind with random weights and few layers, for tests.

    It has the fewest layers that include one of each kind, so a test's result also holds for the
    whole model.
    """
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    count = text.num_hidden_layers
    kinds = getattr(text, "layer_types", None) or [None] * count
    kept = 1 + max(kinds.index(kind) for kind in set(kinds))
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == count:
            setattr(text, name, value[:kept])
    text.num_hidden_layers = kept
    return _made(shallow, options).to(options.device)
