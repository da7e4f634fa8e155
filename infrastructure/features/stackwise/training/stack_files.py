"""Files of a model's stacks, each with the tensors of one stack.

`stack_{s}.safetensors` contains the layers of stack s, with the names and formats of the final
model. The first file also contains the part below the layers (the embeddings, and a head that is
tied to them), the last one the part above (the final norm, the head). A stack that trained together
with the part above also contains that part, if no later stack changed it: together with the stacks
below, it is a shallower model.

`stack_{s}.json` describes the file: the stack's position in the model, its time steps, its last
loss, the settings that decide the result, and a SHA-256 over the tensors. The description has its
own checksum. The description is removed before a new tensor file is written, and written again
afterwards. So a tensor file without a description is ignored.

These files are not copied to the backup destination: they can be written again from the newest
checkpoint, and the whole model is in `final/`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from infrastructure.backup.format.packs import TensorBytes, encode
from infrastructure.backup.format.tensor_bytes import to_bytes
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.files import atomic_write, remove_parts, sync_directory
from infrastructure.core.json_text import JsonObject
from infrastructure.features.stackwise.training.plain_weights import plain_tensors
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import Unit
from infrastructure.models.model_inputs import inner_model

FORMAT_VERSION = 1
FOLDER = "stacks"
LAYERS, BELOW, ABOVE = "layers", "below", "above"
_FILE = re.compile(r"stack_(\d+)\.(?:safetensors|json)")
_WRAPPED = re.compile(r"^(?:_orig_mod\.|base_model\.model\.)+")

Tensors = dict[str, torch.Tensor]


@dataclass
class StackRecord:
    """The description of a stack's file.

    Attributes:
        stack, num_stacks: number of the stack, from 0; number of stacks in the model.
        first_layer, end_layer, num_layers: layers [first_layer, end_layer), from 0; number of
            layers in the model.
        holds: a list of "layers", "below" and "above".
        time_steps: time steps of its masks; empty: no masks, or each example draws its own.
        step: the run's optimizer step at which the stack was finished; None: it was not finished.
        loss: loss at that step, of the model that ends with this stack; None: it was not trained.
        final_step: step at the end of the run, the same for all its stacks; None: before the end.
        sha256: hash of the tensors' names, types, shapes and bytes.
        model: the class of the model, and a hash of the shapes of all its tensors.
        training: the settings that decide the result, and the data's fingerprint.
    """

    stack: int
    num_stacks: int
    first_layer: int
    end_layer: int
    num_layers: int
    holds: list[str]
    sha256: str
    model: dict[str, str]
    training: JsonObject
    time_steps: list[int] = field(default_factory=list)
    step: int | None = None
    loss: float | None = None
    final_step: int | None = None
    num_parameters: int = 0
    format: int = FORMAT_VERSION


def stack_paths(folder: Path, stack: int) -> tuple[Path, Path]:
    """Return the paths of a stack's files: its tensors and its description."""
    return folder / f"stack_{stack}.safetensors", folder / f"stack_{stack}.json"


def stack_tensors(rack: Rack, unit: Unit, holds: Sequence[str]) -> Tensors:
    """Return the current tensors of a unit by their names in the final model.

    Args:
        holds: some of "layers", "below" and "above".
    """
    inner = inner_model(rack.model)
    path = next(name for name, module in inner.named_modules() if module is rack.layers)
    tensors: Tensors = {}
    if LAYERS in holds:
        for index in range(unit.first, unit.last):
            tensors |= plain_tensors(rack.layers[index], f"{path}.{index}.")
    if BELOW in holds or ABOVE in holds:
        above = {plain_name(name) for name in rack.above}
        for name, tensor in plain_tensors(inner, leave_out=rack.layers):
            if (ABOVE if name in above else BELOW) in holds:
                tensors[name] = tensor
    return each_once(tensors)


def each_once(tensors: Tensors) -> Tensors:
    """Keep only the first name of each tensor. A tied head has several."""
    seen: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    kept = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in seen or not tensor.numel():
            kept[name] = tensor
        seen.add(place)
    return kept


def plain_name(name: str) -> str:
    """Return a parameter's name without the prefixes of wrappers around the model."""
    return _WRAPPED.sub("", name)


def shapes_hash(rack: Rack) -> str:
    """Return a hash of the names and shapes of all tensors in the final model."""
    shapes = {name: list(t.shape) for name, t in plain_tensors(inner_model(rack.model))}
    return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()


def digest_of(tensors: Mapping[str, TensorBytes]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name, stored in sorted(tensors.items()):
        digest.update(json.dumps([name, stored.dtype, list(stored.shape)]).encode())
        digest.update(stored.data)
    return digest.hexdigest()


def write_stack(folder: Path, tensors: Tensors, record: StackRecord) -> None:
    """Write a stack's files, unless identical files exist.

    Args:
        record: its `sha256` and `num_parameters` are set here.

    Raises:
        OSError: the disk returned an error. The stack is then ignored.
    """
    stored = {name: to_bytes(tensor) for name, tensor in tensors.items()}
    record.sha256 = digest_of(stored)
    record.num_parameters = sum(tensor.numel() for tensor in tensors.values())
    tensor_file, record_file = stack_paths(folder, record.stack)
    buffers = encode(stored)
    known = _known(record_file)
    is_same = known.get("sha256") == record.sha256
    is_there = is_same and _size_of(tensor_file) == sum(map(len, buffers))
    if not is_there:
        if record_file.exists():
            record_file.unlink()
            sync_directory(folder)
        with atomic_write(tensor_file) as file:
            for buffer in buffers:
                file.write(buffer)
    if not is_there or known != asdict(record):
        write_record(record_file, asdict(record))


def remove_others(folder: Path, num_stacks: int) -> None:
    """Remove incomplete files of killed processes, and stacks that no longer exist."""
    remove_parts(folder)
    for path in folder.glob("stack_*"):
        match = _FILE.fullmatch(path.name)
        if match is not None and int(match[1]) >= num_stacks:
            path.unlink()


def _known(path: Path) -> JsonObject:
    try:
        return read_record(path)
    except (FileNotFoundError, DamagedFileError):
        return {}


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
