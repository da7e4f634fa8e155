"""Checkpoints of a sharded model: each rank writes and reads its own part.

Each rank writes the objects that hold its shards. Rank 0 holds the store's lock and commits one
manifest when all ranks have written, so a checkpoint exists completely or not at all. The metadata
of torch's planner (which chunk of which tensor is where) is JSON in the manifest. Nothing is
pickled to disk. A rank that can access the store's directory (one machine, or one file system)
writes there. Other ranks upload their objects directly to the run's backup destination, where each
object is confirmed before the manifest is written. If there is no backup destination, or the state
is small, rank 0 gathers the state and writes an ordinary checkpoint.

Reading needs no shared disk, and works for both kinds of checkpoint with any number of ranks: rank
0 reads, verifies and sends one tensor at a time, and each rank keeps its part. Planner and storage:
https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import functools
import io
import json
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.futures import Future

from infrastructure.backup.format.manifest import COPIED_APART, Pack, StoredTensor
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention, versions_to_keep
from infrastructure.backup.format.store import Placed, Store
from infrastructure.backup.format.tensor_bytes import DTYPES, NAMES, to_bytes
from infrastructure.backup.replication.apart import ApartSettings, place_apart
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.writer.writer_process import only_writer
from infrastructure.core.errors import CheckpointError, InputError, StorageError, TemperError
from infrastructure.core.exact_json import to_json
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonObject
from infrastructure.models.trainable_state import trainable_state, whole
from infrastructure.run.checkpoint_paths import store_of
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    by_full_name,
    own_values,
)
from infrastructure.training.checkpoints.chunked_version import (
    KEY,
    TUPLE,
    VALUES,
    Piece,
    TensorChunk,
    chunk_name,
    pieces_of,
)
from infrastructure.training.checkpoints.snapshot import Snapshot, VersionFacts
from infrastructure.training.distributed.group import Group

# A state up to this size, or this share of the model, is gathered and written in the background. A
# larger one is written by all ranks at once, which wait for it.
GATHERED_BYTES = 32 << 20
GATHERED_SHARE = 1 / 8
PIECE_BYTES = 256 << 20  # size of the whole tensors that rank 0 holds at a time while writing


def save_distributed(
    root: Path,
    state_dict: dict[str, object],
    values: JsonObject,
    *,
    step: int,
    retention: Retention | None = None,
    files: Mapping[str, TensorBytes] | None = None,
    apart: RemoteSession | None = None,
    hash_name: str | None = None,
    **facts: Unpack[VersionFacts],
) -> str | None:
    """Save a sharded state as one checkpoint; all processes call this together.

    Args:
        root: the store's directory, the same for all processes.
        state_dict: a nested dictionary of tensors, DTensors (shards are saved as they are, replicas
            once) and JSON values.
        values: values of the manifest, as in `Store.commit`; rank 0's values are used.
        retention: which checkpoints to keep. None: all.
        files: files of the run to include; rank 0's files are used.
        apart: where this process uploads its part instead of `root`; never set on rank 0.
        hash_name: the hash function for all objects. None: the best that each process has.
        facts: `kind`, `healthy`, `score` as in `Store.commit`.

    Returns:
        The name of the new version in the store on rank 0, None on the other ranks.

    Raises:
        StorageError: a rank could not write. No checkpoint was made; earlier ones are untouched.
    """
    store = Store(root)
    store.hash_name = hash_name or store.hash_name
    writer = StoreWriter(store, values, files or {}, apart, step=step, **facts)
    try:
        with only_writer(root) if _rank() == 0 else nullcontext(), _one_process_is_enough():
            dcp.save(state_dict, storage_writer=writer, planner=JsonSavePlanner())
            if retention is not None and writer.name is not None:
                writer.store.remove_all_but(versions_to_keep(writer.store, retention))
    except CheckpointException as error:  # not an Exception: `except Exception` would miss it
        raise StorageError(
            "training.distributed_checkpoint_not_written", root=root, reason=_reasons(error)
        ) from None
    return writer.name


def save_together(
    group: Group,
    manager: CheckpointManager | None,
    snapshot: Snapshot,
    model: torch.nn.Module,
    **facts: Unpack[VersionFacts],
) -> None:
    """Write a checkpoint of a run with a sharded state; all ranks call this together.

    Args:
        manager: rank 0's manager; None on the others.
        snapshot: this rank's snapshot, with its parts of the tensors; rank 0's values are used.
        model: its size determines what counts as a small state, such as a LoRA.

    Raises:
        StorageError: the disk returns an error. Earlier checkpoints are untouched.
    """
    if is_gathered(size_bytes(snapshot), model):
        gathered = Snapshot(
            {
                name: {key: whole(tensor) for key, tensor in members.items()}
                for name, members in snapshot.tensors.items()
            },
            snapshot.values,
        )
        if manager is not None:
            manager.begin(gathered, **facts)
        return
    root = Path(group.decide(lambda: str(_of(manager).store.root.resolve())))
    hash_name = group.decide(lambda: _of(manager).store.hash_name)
    is_seen, all_see = seen_by(group, root)
    apart = None
    if not all_see:
        apart, is_had = way_apart(group, manager, is_needed=not is_seen)
        if not is_had:
            _save_gathered(manager, snapshot, **facts)
            return
    state = {
        name: {
            key: tensor
            for key, tensor in members.items()
            if isinstance(tensor, DTensor) or manager is not None
        }
        for name, members in snapshot.tensors.items()
    }
    name = save_distributed(
        root,
        cast(dict[str, object], state),
        snapshot.values,
        step=snapshot.values["step"],
        retention=None if manager is None else manager.retention,
        files=None if manager is None else manager.files(),
        apart=apart,
        hash_name=hash_name,
        **facts,
    )
    if manager is not None and name is not None:
        manager.note_committed(name)


def is_gathered(state_bytes: int, model: torch.nn.Module) -> bool:
    """Return whether a state is so small, relative to `model`, that rank 0 writes it alone."""
    model_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    return state_bytes <= max(GATHERED_BYTES, GATHERED_SHARE * model_bytes)


def seen_by(group: Group, root: Path) -> tuple[bool, bool]:
    """Return whether this rank can access rank 0's directory `root`, and whether all ranks can.

    All ranks look for a file that rank 0 creates in the directory.
    """

    def put() -> str:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".seen-", delete=False) as file:
            return file.name

    path = Path(group.decide(put))
    is_seen = path.exists()
    all_see = all_ranks(group, is_seen)
    if group.is_first:
        path.unlink(missing_ok=True)
    return is_seen, all_see


def all_ranks(group: Group, is_so: bool) -> bool:
    """Return whether the condition `is_so` is True on every rank."""
    count = torch.tensor([int(is_so)])
    group.sum([count])
    return int(count) == group.size


def way_apart(
    group: Group, manager: CheckpointManager | None, *, is_needed: bool
) -> tuple[RemoteSession | None, bool]:
    """Return a connection to the backup destination (or None), and whether all ranks that need a
    connection have one.

    The connection is None if this rank does not need one or cannot connect.
    """

    def describe() -> JsonObject | None:
        settings = _of(manager).apart()
        return None if settings is None else settings.to_json()

    described, link = group.decide(describe), None
    if described is not None and is_needed:
        with suppress(OSError, ValueError, TemperError):
            link = _link_to(json.dumps(described, sort_keys=True))
    return link, all_ranks(group, described is not None and (link is not None or not is_needed))


@functools.lru_cache(maxsize=1)  # keeps what is known of its objects
def _link_to(described: str) -> RemoteSession:
    return ApartSettings.from_json(json.loads(described)).link()


def _save_gathered(
    manager: CheckpointManager | None, snapshot: Snapshot, **facts: Unpack[VersionFacts]
) -> None:
    """Write an ordinary checkpoint on rank 0, which gathers a few tensors of all ranks at a
    time.
    """
    writing = None if manager is None else manager.write_by_parts(snapshot.values, **facts)
    part: dict[str, TensorBytes] = {}
    for name, tensor in by_full_name(snapshot).items():
        gathered = whole(tensor)
        if writing is None:
            continue
        part[name] = to_bytes(gathered)
        if sum(len(one.data) for one in part.values()) >= PIECE_BYTES:
            writing.add(part)
            part = {}
    if writing is not None:
        writing.add(part)
        writing.commit()


def load_together(
    group: Group,
    checkpoint: Path | None,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Snapshot:
    """Load a checkpoint on all ranks: each rank's parts of the tensors, and all values.

    All ranks call this together.

    Args:
        checkpoint: rank 0's path; None on the others.

    Raises:
        CheckpointError: the checkpoint is damaged, or holds another state; raised on all ranks.
    """
    store = manifest = None
    failed = ""
    if checkpoint is not None:
        try:
            store = store_of(checkpoint)
            manifest = store.read(checkpoint.stem)
            store.verify(manifest, run_files=False)  # before any rank waits for a part
        except CheckpointError as error:
            failed = str(error)
    if reason := group.decide(lambda: failed):
        raise CheckpointError(reason)
    values = group.decide(lambda: {} if manifest is None else own_values(manifest.values))
    snapshot = Snapshot({}, values)
    living = {"model": trainable_state(model), "optimizer": _optimizer_tensors(optimizer)}
    pieces = iter(pieces_of(store, manifest)) if store is not None and manifest else iter(())
    while (piece := _next_piece(group, pieces)) is not None:
        members = snapshot.tensors.setdefault(piece.group, {})
        if piece.name not in members:
            like = living.get(piece.group, {}).get(piece.name)
            members[piece.name] = _room_for(piece, like, optimizer)
        _keep_own_part(members[piece.name], piece)
    return snapshot


def size_bytes(snapshot: Snapshot) -> int:
    """Return the total size in bytes of the whole (unsharded) tensors."""
    groups = snapshot.tensors.values()
    return sum(t.numel() * t.element_size() for members in groups for t in members.values())


def _of(manager: CheckpointManager | None) -> CheckpointManager:
    assert manager is not None, "rank 0 has the checkpoints"
    return manager


def _next_piece(group: Group, pieces: Iterator[Piece]) -> Piece | None:
    """Send rank 0's next piece to every rank and return the piece; None after the last one."""
    own = next(pieces, None)
    facts = group.decide(lambda: None if own is None else _facts(own))
    if facts is None:
        return None
    if own is None:
        chunk = TensorChunk(tuple(facts["offsets"]), tuple(facts["sizes"]))
        content = torch.empty(chunk.sizes, dtype=DTYPES[facts["dtype"]])
        own = Piece(facts["group"], facts["name"], tuple(facts["size"]), chunk, content)
    group.broadcast([own.content])
    return own


def _facts(piece: Piece) -> JsonObject:
    return {
        "group": piece.group,
        "name": piece.name,
        "size": list(piece.size),
        "offsets": list(piece.chunk.offsets),
        "sizes": list(piece.chunk.sizes),
        "dtype": NAMES[piece.content.dtype],
    }


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's parameters by their index in the optimizer's state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {str(number): parameter for number, parameter in enumerate(parameters)}


def _room_for(
    piece: Piece, like: torch.Tensor | None, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Allocate memory for this rank's part of the tensor `piece`, sharded like the weight
    `like`.
    """
    if piece.group == "optimizer":  # tensors with a weight's shape are sharded like the weight
        like = _optimizer_tensors(optimizer).get(piece.name.partition("/")[0])
    if isinstance(like, DTensor) and tuple(like.shape) == piece.size:
        return torch.empty_like(like, dtype=piece.content.dtype).detach()
    return torch.empty(piece.size, dtype=piece.content.dtype)


def _keep_own_part(target: torch.Tensor, piece: Piece) -> None:
    """Copy the part of `piece` that this rank owns into `target`."""
    if not isinstance(target, DTensor):
        piece.chunk.of(target).copy_(piece.content)
        return
    own = own_chunk(target)
    begins, lengths = [], []
    for start, size, own_start, own_size in zip(
        piece.chunk.offsets, piece.chunk.sizes, own.offsets, own.sizes, strict=True
    ):
        begins.append(max(start, own_start))
        lengths.append(min(start + size, own_start + own_size) - begins[-1])
    if any(length <= 0 for length in lengths):
        return
    source = _within(piece.chunk, begins, lengths).of(piece.content)
    _within(own, begins, lengths).of(target.to_local()).copy_(source)


def _within(outer: TensorChunk, begins: Sequence[int], lengths: Sequence[int]) -> TensorChunk:
    offsets = tuple(begin - start for begin, start in zip(begins, outer.offsets, strict=True))
    return TensorChunk(offsets, tuple(lengths))


def own_chunk(tensor: DTensor) -> TensorChunk:
    """Return the chunk of a sharded or replicated tensor that this rank holds.

    Raises:
        ValueError: the tensor is sharded in another way than along its first axis.
    """
    size = tuple(tensor.shape)
    [placement] = tensor.placements
    if isinstance(placement, Replicate):
        return TensorChunk((0,) * len(size), size)
    if placement != Shard(0):
        raise InputError("training.tensor_placement_unsupported", placement=placement)
    length = ceil_div(size[0], tensor.device_mesh.size())
    begin = min(size[0], length * tensor.device_mesh.get_local_rank())
    return TensorChunk((begin, *(0 for _ in size[1:])), tuple(tensor.to_local().shape))


class JsonSavePlanner(DefaultSavePlanner):
    """A variant of torch's planner that writes values as JSON instead of pickling them."""

    def transform_object(self, write_item: WriteItem, object: object) -> object:
        if write_item.type == WriteItemType.BYTE_IO:
            value = to_json(object, f"the value {write_item.index.fqn}", TUPLE)
            return io.BytesIO(json.dumps(value, allow_nan=False).encode())
        return object


class StoreWriter(StorageWriter):
    """A writer of one rank's part of a state, to a store or to the backup destination.

    On rank 0 it also commits the checkpoint.

    Attributes:
        name: the name of the new version in the store, once it is committed.
    """

    def __init__(
        self,
        store: Store,
        values: JsonObject,
        files: Mapping[str, TensorBytes],
        apart: RemoteSession | None = None,
        *,
        step: int,
        **facts: Unpack[VersionFacts],
    ) -> None:
        self.store, self.apart = store, apart
        self.files = files
        self.values = values
        self.step, self.facts = step, facts
        self.name: str | None = None

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        self.name = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """Prepare the store on the coordinator, which holds the store's lock.

        The other ranks start writing later, because they first wait for the coordinator's plan.
        """
        if is_coordinator:
            self.store.sweep()
            self.store.prepare()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors = dict(self.files)
        indices = {name: MetadataIndex(name) for name in tensors}
        for item in plan.items:
            name, tensor = _bytes_of(item, planner.resolve_data(item))
            tensors[name], indices[name] = tensor, item.index
        if self.apart is None:
            placed = self.store.place(tensors)
        else:
            placed = place_apart(self.apart, tensors, self.store.hash_name)
        is_apart = self.apart is not None
        future: Future[list[WriteResult]] = Future()
        future.set_result(
            [
                WriteResult(
                    indices[name], len(tensors[name].data), (name, pack, place.hash, is_apart)
                )
                for name, place in placed.tensors.items()
                for pack in [placed.packs[place.pack]]
            ]
        )
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit the checkpoint once all ranks have written and verified their parts."""
        written = [result.storage_data for of_rank in results for result in of_rank]
        packs: dict[Pack, int] = {}
        tensors = {
            name: StoredTensor(packs.setdefault(pack, len(packs)), digest)
            for name, pack, digest, _ in written
        }
        values: dict[str, Any] = {**self.values, KEY: _describe(metadata)}
        here = {pack.hash for _, pack, _, is_apart in written if not is_apart}
        if others := {pack.hash for pack in packs} - here:
            values[COPIED_APART] = sorted(others)
        self.name = self.store.publish(
            Placed(tuple(packs), tensors), values, step=self.step, **self.facts
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return False  # the content determines a version's name


def _bytes_of(item: WriteItem, data: torch.Tensor | io.BytesIO) -> tuple[str, TensorBytes]:
    if isinstance(data, torch.Tensor):
        return chunk_name(item.index.fqn, tuple(item.index.offset or ())), to_bytes(data)
    content = data.getvalue()
    return f"{VALUES}/{item.index.fqn}", TensorBytes("U8", (len(content),), content)


def _describe(metadata: Metadata) -> dict[str, object]:
    """Return the metadata of torch's planner (which chunk of which tensor is where) as JSON."""
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


def _reasons(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {text}" for rank, text in _failures(error))


def _failures(error: CheckpointException) -> Iterator[tuple[int, str]]:
    for rank, failure in sorted(error.failures.items()):
        yield rank, str(failure[0])


@contextmanager
def _one_process_is_enough() -> Iterator[None]:
    """Suppress torch's warning about a missing process group, because one process needs none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
