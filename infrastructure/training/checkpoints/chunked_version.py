"""Reading, by a single process, of checkpoints whose tensors were written in chunks by several
ranks.

backup/FORMAT.md describes the format of their manifest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from infrastructure.backup.format.manifest import FILES as RUN_FILES
from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.store import Store
from infrastructure.backup.format.tensor_bytes import DTYPES, from_bytes
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.exact_json import from_json
from infrastructure.core.json_text import parse_json

KEY = "distributed"  # in a manifest's values
VALUES = "values"  # the class of everything but tensors, stored as the bytes of its JSON
TUPLE = "__tuple__"  # part of the format


@dataclass(frozen=True)
class TensorChunk:
    """A rectangular part of a tensor: its offset and length along each axis."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this part of the tensor `whole`, as a view that shares its memory."""
        for axis, (start, length) in enumerate(zip(self.offsets, self.sizes, strict=True)):
            whole = whole.narrow(axis, start, length)
        return whole


@dataclass(frozen=True)
class ChunkedTensor:
    """A tensor that is stored in chunks."""

    size: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[TensorChunk, ...]


@dataclass(frozen=True)
class Piece:
    """A tensor of a checkpoint, or a chunk of one.

    Attributes:
        group: the group in the state: "model", "optimizer", …
        size: shape of the whole tensor.
        chunk: the part of the tensor that `content` holds.
    """

    group: str
    name: str
    size: tuple[int, ...]
    chunk: TensorChunk
    content: torch.Tensor


def is_chunked(manifest: Manifest) -> bool:
    """Return whether several ranks wrote the checkpoint, each rank its own part of the tensors."""
    return KEY in manifest.values


def pieces_of(store: Store, manifest: Manifest) -> Iterator[Piece]:
    """Yield the verified tensors of a checkpoint, in the chunks in which they were written.

    Files of the run are left out.

    Raises:
        CheckpointError: the checkpoint is damaged. Damaged tensors are not yielded.
    """
    chunk_of = _chunks_by_name(manifest) if is_chunked(manifest) else {}
    missing = set(chunk_of)
    for full_name, stored in store.load(manifest, without=RUN_FILES):
        group, _, name = full_name.partition("/")
        if full_name in chunk_of:
            key, tensor, chunk = chunk_of[full_name]
            missing.discard(full_name)
            group, _, name = key.partition(".")
            yield Piece(group, name, tensor.size, chunk, from_bytes(stored))
        elif group != VALUES or not is_chunked(manifest):
            content = from_bytes(stored)
            size = tuple(content.shape)
            yield Piece(group, name, size, TensorChunk((0,) * len(size), size), content)
    if missing:
        raise CheckpointError(
            "run.checkpoint_lacks_parts", count=len(missing), example=min(missing)
        )


def tensors_of(store: Store, manifest: Manifest) -> dict[str, dict[str, torch.Tensor]]:
    """Return all tensors of a checkpoint on the CPU, merged from their chunks, by group and name.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for piece in pieces_of(store, manifest):
        group = groups.setdefault(piece.group, {})
        if piece.size == piece.chunk.sizes:
            group[piece.name] = piece.content
            continue
        if piece.name not in group:
            group[piece.name] = torch.empty(piece.size, dtype=piece.content.dtype)
        piece.chunk.of(group[piece.name]).copy_(piece.content)
    return groups


def load_whole(store: Store, manifest: Manifest) -> dict[str, object]:
    """Return all tensors (on the CPU) and values of a chunked checkpoint in one dictionary.

    Keys are full names, such as "model.layer.weight".

    Raises:
        CheckpointError: the checkpoint is damaged, or was not written by several ranks.
    """
    described_values(manifest)
    values: dict[str, object] = {
        f"{group}.{name}": tensor
        for group, members in tensors_of(store, manifest).items()
        for name, tensor in members.items()
    }
    of_values = [name for name in manifest.tensors if name.startswith(f"{VALUES}/")]
    for name, stored in store.load(manifest, names=of_values):
        values[name.partition("/")[2]] = decode_value(bytes(stored.data))
    return values


def chunk_name(key: str, offsets: tuple[int, ...]) -> str:
    """Return a chunk's name in the store: "model.a.b" at (0, 64) is "model/a.b@0,64"."""
    tensor_class, _, rest = key.partition(".")
    return f"{tensor_class}/{rest}@{','.join(map(str, offsets))}"


def described_values(manifest: Manifest) -> Any:
    """Return the manifest's description of the chunks of all tensors.

    Raises:
        CheckpointError: the checkpoint was not written by several ranks.
    """
    if not is_chunked(manifest):
        raise CheckpointError("run.checkpoint_not_sharded")
    return manifest.values[KEY]


def described_tensors(manifest: Manifest) -> dict[str, ChunkedTensor]:
    """Return the chunked tensors that a manifest describes, by their dotted names.

    The manifest is validated, because it is untrusted input.

    Raises:
        CheckpointError: the description is invalid.
    """
    described = described_values(manifest)
    try:
        tensors = {str(key): _tensor(entry) for key, entry in described["tensors"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError("run.invalid_manifest_entry", key=KEY, error=error) from error
    _refuse_oversized(tensors, manifest)
    return tensors


def decode_value(data: bytes) -> object:
    """Decode the JSON of a value that is not a tensor. The data is untrusted input.

    Raises:
        CheckpointError: the data is not JSON.
    """
    try:
        return from_json(parse_json(data), TUPLE)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError("run.checkpoint_value_not_json", error=error) from error


def _chunks_by_name(manifest: Manifest) -> dict[str, tuple[str, ChunkedTensor, TensorChunk]]:
    return {
        chunk_name(key, chunk.offsets): (key, tensor, chunk)
        for key, tensor in described_tensors(manifest).items()
        for chunk in tensor.chunks
    }


def _refuse_oversized(tensors: Mapping[str, ChunkedTensor], manifest: Manifest) -> None:
    """Reject tensors larger than the stored objects, before memory is allocated for them."""
    claimed = sum(prod(tensor.size) * tensor.dtype.itemsize for tensor in tensors.values())
    if claimed > sum(pack.size_bytes for pack in manifest.packs):
        raise CheckpointError("run.manifest_claims_too_many_bytes", key=KEY, size=claimed)


def _tensor(entry: dict[str, Any]) -> ChunkedTensor:
    size = _lengths(entry["size"])
    chunks = tuple(
        TensorChunk(_lengths(begin), _lengths(sizes)) for begin, sizes in entry["chunks"]
    )
    for chunk in chunks:
        ends = [a + b for a, b in zip(chunk.offsets, chunk.sizes, strict=True)]
        if any(end > length for end, length in zip(ends, size, strict=True)):
            raise InputError("run.chunk_exceeds_tensor", ends=ends, shape=list(size))
    if sum(prod(chunk.sizes) for chunk in chunks) != prod(size):
        raise InputError("run.chunks_do_not_fill_tensor", shape=list(size))
    return ChunkedTensor(size, DTYPES[entry["dtype"]], chunks)


def _lengths(values: Any) -> tuple[int, ...]:
    if not all(type(value) is int and 0 <= value < 1 << 48 for value in values):
        raise InputError("run.invalid_chunk_lengths", values=values)
    return tuple(values)
