"""Checkpoints of many processes, through torch.distributed.checkpoint's planner.

Each rank writes the objects that hold its shards; rank 0 holds the store's lock and commits one
manifest when all have, so a version is there whole or not at all. What the planner knows of the
state (which chunk of which tensor lies where) is JSON in the manifest; nothing is pickled on the
disk. The number of processes may be another when it is loaded, or one that knows no processes.

All ranks must see the directory of the store: one machine, or one file system.
Planner and storage: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from infrastructure.backup.format.manifest import Manifest, Pack, StoredTensor
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention, versions_to_keep
from infrastructure.backup.format.store import Placed, Store
from infrastructure.backup.format.tensor_bytes import DTYPES, NAMES, from_bytes, to_bytes
from infrastructure.backup.writer.writer_process import only_writer
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.exact_json import from_json, to_json
from infrastructure.core.json_text import JsonObject, parse_json
from infrastructure.training.checkpoints.snapshot import VersionFacts

KEY = "distributed"  # in a manifest's values
VALUES = "values"  # the class of what is not a tensor; lies there as the bytes of its JSON
TUPLE = "__tuple__"  # of the format


def save_distributed(
    root: Path,
    state_dict: dict[str, object],
    values: JsonObject,
    *,
    step: int,
    retention: Retention | None = None,
    **facts: Unpack[VersionFacts],
) -> str | None:
    """Save a state of which every process has a part; all processes call this together.

    Args:
        root: the store's directory, the same for all.
        state_dict: nested; tensors, DTensors (shards are saved as they are, replicas once), and
            values that JSON can say.
        values: of the manifest, as in `Store.commit`; rank 0's count.
        retention: what rotation leaves; None: everything.
        facts: `kind`, `healthy`, `score` as in `Store.commit`.

    Returns:
        The version's name on rank 0, None on the others.

    Raises:
        StorageError: a rank could not write; no version was made, those before are untouched.
    """
    writer = StoreWriter(root, values, step=step, **facts)
    try:
        with only_writer(root) if _rank() == 0 else nullcontext(), _one_process_is_enough():
            dcp.save(state_dict, storage_writer=writer, planner=JsonSavePlanner())
            if retention is not None and writer.name is not None:
                writer.store.remove_all_but(versions_to_keep(writer.store, retention))
    except CheckpointException as error:  # not an Exception: `except Exception` would miss it
        raise StorageError(f"no version was written to {root}: {_reasons(error)}") from None
    return writer.name


def load_distributed(root: Path, name: str, state_dict: dict[str, object]) -> None:
    """Fill `state_dict`, whose tensors are there already, from the version `name`; all processes
    call this together, however many they are.

    Raises:
        CheckpointError: it is damaged, or holds another state.
    """
    try:
        with _one_process_is_enough():
            dcp.load(state_dict, storage_reader=StoreReader(root, name), planner=JsonLoadPlanner())
    except CheckpointException as error:
        raise CheckpointError(f"version {name[:12]}: {_reasons(error)}") from None


def load_whole(store: Store, manifest: Manifest) -> dict[str, object]:
    """All of a distributed version in one process without a process group: full tensors on the CPU
    and values, by their full names ("model.layer.weight").

    Raises:
        CheckpointError: it is damaged, or was not saved by `save_distributed`.
    """
    known = _read_metadata(manifest)
    values: dict[str, Any] = {}
    chunk_of: dict[str, tuple[str, ChunkStorageMetadata]] = {}
    for key, entry in known.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            values[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
            chunk_of |= {_name_of(key, c.offsets): (key, c) for c in entry.chunks}
    for name, stored in store.load(manifest):
        if name in chunk_of:
            key, chunk = chunk_of.pop(name)
            part = values[key]
            for axis, (start, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                part = part.narrow(axis, start, length)
            part.copy_(from_bytes(stored))
        elif name.startswith(f"{VALUES}/"):
            values[name.partition("/")[2]] = _decode(bytes(stored.data))
    if chunk_of:
        raise CheckpointError(f"the version lacks {len(chunk_of)} parts, such as {min(chunk_of)!r}")
    return values


class JsonSavePlanner(DefaultSavePlanner):
    """torch's planner, which pickles what is not a tensor; this one writes JSON."""

    def transform_object(self, write_item: WriteItem, object: object) -> object:
        if write_item.type == WriteItemType.BYTE_IO:
            value = to_json(object, f"the value {write_item.index.fqn}", TUPLE)
            return io.BytesIO(json.dumps(value, allow_nan=False).encode())
        return object


class JsonLoadPlanner(DefaultLoadPlanner):
    """torch's planner, which unpickles what is not a tensor; this one reads JSON."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        target: Any = self.original_state_dict
        *parents, last = self.mappings[read_item.dest_index.fqn]
        for key in parents:
            target = target[key]
        target[last] = _decode(value.getvalue())


class StoreWriter(StorageWriter):
    """Writes a rank's part of a state into a store; on rank 0, commits the version.

    Attributes:
        name: the version's, once it is committed.
    """

    def __init__(
        self, root: Path, values: JsonObject, *, step: int, **facts: Unpack[VersionFacts]
    ) -> None:
        self.store = Store(root)
        self.values = values
        self.step, self.facts = step, facts
        self.name: str | None = None

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        self.name = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """The coordinator has the lock; the others write when they have its plan, so after this."""
        if is_coordinator:
            self.store.sweep()
            self.store.prepare()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors, indices = {}, {}
        for item in plan.items:
            name, tensor = _bytes_of(item, planner.resolve_data(item))
            tensors[name], indices[name] = tensor, item.index
        placed = self.store.place(tensors)
        future: Future[list[WriteResult]] = Future()
        future.set_result(
            [
                WriteResult(indices[name], len(tensors[name].data), (name, pack, place.hash))
                for name, place in placed.tensors.items()
                for pack in [placed.packs[place.pack]]
            ]
        )
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit: all ranks have written, and read back, what they had."""
        written = [result.storage_data for of_rank in results for result in of_rank]
        packs: dict[Pack, int] = {}
        tensors = {
            name: StoredTensor(packs.setdefault(pack, len(packs)), digest)
            for name, pack, digest in written
        }
        values = {**self.values, KEY: _describe(metadata)}
        self.name = self.store.publish(
            Placed(tuple(packs), tensors), values, step=self.step, **self.facts
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return False  # a version is named by what is in it


class StoreReader(StorageReader):
    """Reads what a rank needs of the version `name`, each object verified before it is used."""

    def __init__(self, root: Path, name: str) -> None:
        self.store = Store(root)
        self.manifest = self.store.read(name)

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        return

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        return _read_metadata(self.manifest)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        return

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(_stored_name(item), []).append(item)
        if missing := set(wanted) - set(self.manifest.tensors):
            raise CheckpointError(f"the version lacks {min(missing)!r}")
        for name, stored in self.store.load(self.manifest, names=wanted):
            for item in wanted[name]:
                _deliver(stored, item, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return False


def _deliver(stored: TensorBytes, item: ReadItem, planner: LoadPlanner) -> None:
    """Put what was read where the planner wants it."""
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(stored.data))
        return
    part = from_bytes(stored)
    for axis, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        part = part.narrow(axis, start, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(part)
    planner.commit_tensor(item, target)


def _bytes_of(item: WriteItem, data: torch.Tensor | io.BytesIO) -> tuple[str, TensorBytes]:
    if isinstance(data, torch.Tensor):
        return _name_of(item.index.fqn, item.index.offset or ()), to_bytes(data)
    content = data.getvalue()
    return f"{VALUES}/{item.index.fqn}", TensorBytes("U8", (len(content),), content)


def _stored_name(item: ReadItem) -> str:
    index: MetadataIndex = item.storage_index
    if item.type == LoadItemType.BYTE_IO:
        return f"{VALUES}/{index.fqn}"
    return _name_of(index.fqn, index.offset or ())


def _name_of(key: str, offsets: Sequence[int]) -> str:
    """The full name of a chunk: "model.a.b" at (0, 64) is "model/a.b@0,64"."""
    tensor_class, _, rest = key.partition(".")
    return f"{tensor_class}/{rest}@{','.join(map(str, offsets))}"


def _describe(metadata: Metadata) -> dict[str, object]:
    """The planner's knowledge as JSON."""
    tensors, values = {}, []
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            chunks = [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks]
            dtype = NAMES[entry.properties.dtype]
            tensors[key] = {"dtype": dtype, "size": list(entry.size), "chunks": chunks}
        else:
            values.append(key)
    paths = {key: list(path) for key, path in (metadata.planner_data or {}).items()}
    return {"tensors": tensors, "values": values, "paths": paths}


def _read_metadata(manifest: Manifest) -> Metadata:
    """The inverse of `_describe`; the manifest is hostile input."""
    described = manifest.values.get(KEY)
    if described is None:
        raise CheckpointError("the version was not saved by several processes")
    try:
        entries: dict[str, Any] = {key: _tensor(e) for key, e in described["tensors"].items()}
        entries |= {str(key): BytesStorageMetadata() for key in described["values"]}
        paths = {key: tuple(path) for key, path in described["paths"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the manifest's {KEY!r} is none: {error}") from error
    _refuse_oversized(entries, manifest)
    return Metadata(entries, planner_data=paths)


def _refuse_oversized(entries: Mapping[str, object], manifest: Manifest) -> None:
    """Nothing is allocated for tensors larger than the objects that they lie in."""
    tensors = [entry for entry in entries.values() if isinstance(entry, TensorStorageMetadata)]
    claimed = sum(prod(entry.size) * entry.properties.dtype.itemsize for entry in tensors)
    if claimed > sum(pack.size_bytes for pack in manifest.packs):
        raise CheckpointError(f"the manifest's {KEY!r} says {claimed} bytes, its objects hold less")


def _tensor(entry: dict[str, Any]) -> TensorStorageMetadata:
    size = torch.Size(_lengths(entry["size"]))
    chunks = [
        ChunkStorageMetadata(torch.Size(_lengths(offsets)), torch.Size(_lengths(sizes)))
        for offsets, sizes in entry["chunks"]
    ]
    for chunk in chunks:
        ends = [a + b for a, b in zip(chunk.offsets, chunk.sizes, strict=True)]
        if any(end > length for end, length in zip(ends, size, strict=True)):
            raise ValueError(f"a chunk ends at {ends} of {list(size)}")
    if sum(prod(chunk.sizes) for chunk in chunks) != prod(size):
        raise ValueError(f"the chunks of a tensor do not make up {list(size)}")
    return TensorStorageMetadata(TensorProperties(DTYPES[entry["dtype"]]), size, chunks)


def _lengths(values: Any) -> list[int]:
    if not all(type(value) is int and 0 <= value < 1 << 48 for value in values):
        raise ValueError(f"{values} are no lengths")
    return list(values)


def _decode(data: bytes) -> object:
    """What the saving planner wrote; hostile input."""
    try:
        return from_json(parse_json(data), TUPLE)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"a value of the version is no JSON: {error}") from error


def _reasons(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {text}" for rank, text in _failures(error))


def _failures(error: CheckpointException) -> Iterator[tuple[int, str]]:
    for rank, failure in sorted(error.failures.items()):
        yield rank, str(failure[0])


@contextmanager
def _one_process_is_enough() -> Iterator[None]:
    """torch warns where there is no process group, which here is as good as any."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
