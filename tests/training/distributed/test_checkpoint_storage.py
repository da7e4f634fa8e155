"""Checkpoints of real gloo processes: sharded and replicated, read by one of them."""

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from infrastructure.backup.format.manifest import Manifest, SaveKind
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.run_backup import RunBackup
from infrastructure.backup.state.optimizer_state import split_optimizer
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.chunked_version import (
    KEY,
    TensorChunk,
    decode_value,
    described_values,
    load_whole,
)
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.distributed import checkpoint_storage
from infrastructure.training.distributed.checkpoint_storage import (
    load_together,
    own_chunk,
    save_distributed,
    save_together,
    seen_by,
    way_apart,
)
from infrastructure.training.distributed.group import ALONE, Group, JoinedGroup
from infrastructure.training.distributed.shard import mesh_of, shard_model
from tests.faults.pickle_scan import files_with_pickles
from tests.forks import forked_python
from tests.slow import slow_but
from tests.training.distributed.ranks import results_of, start_ranks

ROOT = Path(__file__).resolve().parents[3]


def run(folder: Path, kind: str, action: str, num_processes: int) -> list[tuple[int, str]]:
    """Exit code and last line of each rank."""
    ranks = [
        forked_python(
            [
                sys.executable,
                "-m",
                "tests.training.distributed.checkpoint_training",
                str(folder),
                kind,
                action,
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(num_processes),
            },
        )
        for rank in range(num_processes)
    ]
    outputs = [rank.communicate()[0].splitlines() for rank in ranks]
    return [
        (r.returncode, lines[-1] if lines else "") for r, lines in zip(ranks, outputs, strict=True)
    ]


def newest(folder: Path) -> tuple[Store, Manifest]:
    store = Store(folder / "store")
    name, rejected = store.newest()
    assert rejected == []
    assert name is not None
    return store, store.read(name)


@pytest.mark.parametrize("kind", slow_but(["fsdp"], ["fsdp", "ddp"]))
def test_what_two_processes_saved_one_process_reads(tmp_path: Path, kind: str) -> None:
    saved = run(tmp_path, kind, "save", 2)
    assert saved[0] == saved[1]
    assert saved[0][0] == 0
    store, manifest = newest(tmp_path)
    whole = load_whole(store, manifest)
    assert whole["model.0.weight"].shape == (10, 6)
    weights = [t for name, t in whole.items() if name.startswith("model.")]
    total = sum(float(t.double().abs().sum()) for t in weights)  # type: ignore[attr-defined]
    assert total == pytest.approx(float(saved[0][1]), rel=1e-6)
    assert whole["optimizer.state.0.weight.exp_avg"].shape == (10, 6)
    betas = next(value for key, value in whole.items() if key.endswith("betas"))
    assert betas == (0.9, 0.999)
    weights = [name for name in manifest.tensors if name.startswith("model/0.weight@")]
    assert len(weights) == (2 if kind == "fsdp" else 1)  # each shard once, each replica once
    assert files_with_pickles(tmp_path / "store") == []
    described = described_values(manifest)  # as FORMAT.md defines it, for other readers
    assert {*described["values"]} == {k for k, v in whole.items() if not torch.is_tensor(v)}
    assert described["paths"]["model.0.weight"] == ["model", "0.weight"]


def test_a_rank_that_is_killed_while_saving_leaves_the_version_before(tmp_path: Path) -> None:
    (survivor, _), (killed, _) = run(tmp_path, "fsdp", "die", 2)
    assert survivor != 0
    assert killed == -9
    store, manifest = newest(tmp_path)
    assert len(store.versions()) == 1
    assert manifest.step == 2
    assert load_whole(store, manifest)


def save_and_lose(group: JoinedGroup, folder: str) -> list[Any]:
    """As on two machines: rank 1 does not see the disk of rank 0, which loses its parts again."""
    root = Path(folder, "run/checkpoints")
    checkpoint_storage.GATHERED_BYTES = checkpoint_storage.GATHERED_SHARE = 0
    checkpoint_storage.seen_by = lambda *_: (group.is_first, False)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10))
    shard_model(model, mesh_of(group))
    tensors: dict[str, torch.Tensor] = dict(model.state_dict())
    own = [tensor.to_local().tolist() for tensor in tensors.values()]  # type: ignore[attr-defined]
    manager = None
    if group.is_first:
        manager = CheckpointManager(root)
        backup = RunBackup(root, BackupConfig(place=f"{folder}/place"), run_id="run")
        backup.check_place()
        manager.apart = backup.apart
    save_together(group, manager, Snapshot({"model": tensors}, {"step": 2}), model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().zero_()  # type: ignore[attr-defined]
    newest = None
    if manager is not None:
        (newest,) = manager.collect(wait=True)
        assert manager.store.read(newest.stem).copied_apart
        manager.fetch_parts(newest)
    optimizer = torch.optim.SGD(model.parameters())
    loaded = load_together(group, newest, model, optimizer).tensors["model"]
    again = [loaded[name].to_local().tolist() for name in tensors]  # type: ignore[attr-defined]
    return [own, again]


def test_each_machine_copies_what_it_holds_where_none_sees_the_disk_of_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "place").mkdir()
    ranks = start_ranks(2, functools.partial(save_and_lose, folder=str(tmp_path)))
    for own, again in results_of(ranks):
        assert again == own
    (manifest_file,) = (tmp_path / "run/checkpoints/versions").iterdir()
    store, remote = Store(tmp_path / "run/checkpoints"), Store(tmp_path / "place/run")
    manifest = store.read(manifest_file.stem)
    assert len(manifest.copied_apart) == 1  # the part of rank 1, of its one class
    copies = {path.name for path in (remote.root / "objects").glob("*/*")}
    assert copies == manifest.copied_apart
    assert remote.versions() == []  # which rank 0's copier writes, when all is there


def save_and_load(group: JoinedGroup, folder: str) -> bool:
    """A sharded weight whose rows are uneven, a buffer and an optimizer whose step is a number."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
    shard_model(model, mesh_of(group))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 6)).square().sum().backward()
    optimizer.step()
    held, _ = split_optimizer(optimizer.state_dict())
    tensors = {"model": dict(model.state_dict()), "optimizer": held}
    manager = CheckpointManager(Path(folder)) if group.is_first else None
    save_together(group, manager, Snapshot(tensors, {"step": 1}), model)
    newest = None if manager is None else manager.newest()
    loaded = load_together(group, newest, model, optimizer).tensors
    kinds = {isinstance(tensor, DTensor) for each in tensors.values() for tensor in each.values()}
    return kinds == {True, False} and all(
        loaded[name].keys() == each.keys()
        and all(
            isinstance(loaded[name][key], DTensor) is isinstance(tensor, DTensor)
            and loaded[name][key].dtype is tensor.dtype
            and torch.equal(own_part(loaded[name][key]), own_part(tensor))
            for key, tensor in each.items()
        )
        for name, each in tensors.items()
    )


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("is_gathered", [True, False])
def test_each_rank_gets_back_its_part_and_all_of_what_is_not_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gathered: bool
) -> None:
    monkeypatch.setattr(checkpoint_storage, "is_gathered", lambda *_: is_gathered)
    ranks = start_ranks(3, functools.partial(save_and_load, folder=str(tmp_path)))
    assert results_of(ranks) == [True, True, True]


def save_on_full_disks(group: JoinedGroup, folder: str) -> list[str]:
    """What each rank learns where the disk of rank 1 is full for a while, and then its place."""
    checkpoint_storage.GATHERED_BYTES = checkpoint_storage.GATHERED_SHARE = 0
    model = torch.nn.Sequential(torch.nn.Linear(6, 10))
    shard_model(model, mesh_of(group))
    tensors: dict[str, torch.Tensor] = dict(model.state_dict())
    manager = CheckpointManager(Path(folder, "run/checkpoints")) if group.is_first else None
    if manager is not None:
        backup = RunBackup(manager.store.root, BackupConfig(place=f"{folder}/place"), run_id="run")
        backup.check_place()
        manager.apart = backup.apart
    place, place_apart = Store.place, checkpoint_storage.place_apart

    def full(*_: Any) -> Any:
        raise StorageError("no space left on rank 1")

    outcomes = []
    for step in range(4):
        if group.rank == 1:
            Store.place = full if step == 1 else place  # type: ignore[method-assign]
            checkpoint_storage.place_apart = full if step == 2 else place_apart
        if step == 2:
            checkpoint_storage.seen_by = lambda *_: (group.is_first, False)
        try:
            save_together(group, manager, Snapshot({"model": tensors}, {"step": step}), model)
            outcomes.append("saved")
        except StorageError as error:
            outcomes.append(str(error).rpartition("reason=rank ")[2])
    return outcomes


def test_what_refuses_one_rank_is_an_error_of_all_and_the_next_save_counts(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    outcomes = results_of(
        start_ranks(2, functools.partial(save_on_full_disks, folder=str(tmp_path)))
    )
    full = "1: no space left on rank 1)"
    assert outcomes == [["saved", full, full, "saved"]] * 2
    store = Store(tmp_path / "run/checkpoints")
    assert [store.read(name).step for name in store.versions()] == [3, 0]


def test_where_a_rank_cannot_reach_the_place_rank_0_gathers_all(tmp_path: Path) -> None:
    ranks = start_ranks(2, functools.partial(ways_apart, folder=str(tmp_path)))
    assert results_of(ranks) == [[False, False, True], [False, False, True]]


def ways_apart(group: JoinedGroup, folder: str) -> list[bool]:
    """Whether all have a way: without a place, to one that rank 1 does not see, to one for all."""
    manager = CheckpointManager(Path(folder, "checkpoints")) if group.is_first else None
    ways = [way_apart(group, manager, is_needed=not group.is_first)[1]]
    for place in ("another", "place"):
        if manager is not None:
            Path(folder, place).mkdir()
            backup = RunBackup(Path(folder), BackupConfig(place=f"{folder}/{place}"), run_id="run")
            backup.check_place()
            if place == "another":
                shutil.rmtree(Path(folder, place))
            manager.apart = backup.apart
        ways.append(way_apart(group, manager, is_needed=not group.is_first)[1])
    return ways


def state(value: float = 1.0) -> dict[str, object]:
    return {"model": {"a": torch.full((4, 3), value)}, "loop": {"lr": 0.5, "pair": (1, [2, (3,)])}}


def test_one_process_without_a_group(tmp_path: Path) -> None:
    name = save_distributed(tmp_path, state(), {"step": 1}, step=1)
    assert name is not None
    store = Store(tmp_path)
    assert load_whole(store, store.read(name))["loop.pair"] == (1, [2, (3,)])


def test_a_tuple_is_written_as_the_format_has_it(tmp_path: Path) -> None:
    name = save_distributed(tmp_path, state(), {"step": 1}, step=1)
    assert name is not None
    store = Store(tmp_path)
    ((_, stored),) = store.load(store.read(name), names=["values/loop.pair"])
    assert bytes(stored.data) == b'{"__tuple__": [1, [2, {"__tuple__": [3]}]]}'


def test_what_did_not_change_is_stored_once(tmp_path: Path) -> None:
    for step in (1, 2):
        save_distributed(tmp_path, state(), {"step": step}, step=step)
    objects = [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]
    assert len(objects) == 2  # of weights and of values


def test_what_is_neither_tensor_nor_json_is_refused(tmp_path: Path) -> None:
    refused = r"training\.distributed_checkpoint_not_written\(root={}, reason=rank 0: {}\(where="
    refused = refused.format(tmp_path, r"core\.value_not_storable")
    with pytest.raises(StorageError, match=rf"{refused}.*loop\.x"):
        save_distributed(tmp_path, {"loop": {"x": object()}}, {}, step=1)
    assert Store(tmp_path).versions() == []


def one_tensor(**about: Any) -> dict[str, Any]:
    return {"tensors": {"a": {"dtype": "F32", **about}}, "values": [], "paths": {}}


INVALID = r"run\.invalid_manifest_entry\(key=distributed, error="


@pytest.mark.parametrize(
    ("described", "refusal"),
    [
        (None, r"run\.checkpoint_not_sharded"),
        ({}, f"{INVALID}'tensors'"),
        ({"tensors": {"a": {}}, "values": [], "paths": {}}, f"{INVALID}'size'"),
        ({"tensors": [], "values": [], "paths": {}}, f"{INVALID}'list' object"),
        (
            one_tensor(size=[1 << 40], chunks=[[[0], [1 << 40]]]),
            r"run\.manifest_claims_too_many_bytes\(key=distributed, size=4398046511104\)",
        ),
        (
            one_tensor(size=[2], chunks=[[[1], [2]]]),
            rf"{INVALID}run\.chunk_exceeds_tensor\(ends=\[3\], shape=\[2\]\)",
        ),
        (
            one_tensor(size=[-2], chunks=[]),
            rf"{INVALID}run\.invalid_chunk_lengths\(values=\[-2\]\)",
        ),
        (one_tensor(size=[True], chunks=[]), rf"{INVALID}run\.invalid_chunk_lengths"),
        (one_tensor(size=[1 << 48], chunks=[]), rf"{INVALID}run\.invalid_chunk_lengths"),
        (
            one_tensor(size=[2], chunks=[[[0], [1]]]),
            rf"{INVALID}run\.chunks_do_not_fill_tensor\(shape=\[2\]\)",
        ),
        (
            one_tensor(size=[2], chunks=[[[0], [2]], [[1], [1]]]),  # one number twice
            rf"{INVALID}run\.chunks_do_not_fill_tensor\(shape=\[2\]\)",
        ),
        (
            one_tensor(size=[2], chunks=[[[0], [1]], [[1], [1]]]),  # never written
            r"run\.checkpoint_lacks_parts\(count=2, example=a/@0\)",
        ),
    ],
)
def test_a_hostile_description_is_refused(tmp_path: Path, described: object, refusal: str) -> None:
    name = save_distributed(tmp_path, state(), {}, step=1)
    assert name is not None
    store = Store(tmp_path)
    manifest = store.read(name)
    values = {KEY: described} if described is not None else {}
    with pytest.raises(CheckpointError, match=refusal):
        load_whole(store, replace(manifest, values=values))


def test_a_value_that_is_no_json_is_refused() -> None:
    assert decode_value(b'{"a": 1}') == {"a": 1}
    with pytest.raises(CheckpointError, match=r"run\.checkpoint_value_not_json"):
        decode_value(b"{")


def plain_model(value: float = 0.0) -> torch.nn.Linear:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).view(2, 3) + value)
        model.bias.fill_(value)
    return model


@pytest.mark.parametrize("way", ["gathered", "by all ranks", "by parts"])
def test_whichever_way_it_is_written_a_version_holds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Kind, score, files and rotation included; `by all ranks` and `by parts` of no group."""
    if way != "gathered":
        monkeypatch.setattr(checkpoint_storage, "GATHERED_BYTES", 0)
        monkeypatch.setattr(checkpoint_storage, "GATHERED_SHARE", 0)
    if way == "by parts":
        monkeypatch.setattr(checkpoint_storage, "seen_by", lambda *_: (True, False))
        monkeypatch.setattr(checkpoint_storage, "PIECE_BYTES", 20)  # three pieces of what follows
    note = TensorBytes("U8", (2,), b"hi")
    manager = CheckpointManager(
        tmp_path / "run/checkpoints", Retention(2), run_files=lambda: {"files/note": note}
    )
    model = plain_model()
    momentum = {f"0/{name}": torch.full((2,), float(n)) for n, name in enumerate("abc")}
    facts = {"kind": SaveKind.STOPPED, "healthy": True, "score": 0.25}
    for step in (1, 2, 3):
        tensors = {"model": dict(plain_model(step).named_parameters()), "optimizer": momentum}
        snapshot = Snapshot(tensors, {"step": step, "loop": {"seen": step}})  # type: ignore[dict-item]
        save_together(ALONE, manager, snapshot, model, **facts)  # type: ignore[arg-type]
    newest = manager.collect(wait=True)[-1]
    store = manager.store
    assert [store.read(name).step for name in store.versions()] == [3, 2]
    manifest = store.read(newest.stem)
    assert (manifest.step, manifest.kind, manifest.score) == (3, "stopped", 0.25)
    assert [bytes(stored.data) for _, stored in store.load(manifest, names=["files/note"])] == [
        b"hi"
    ]
    optimizer = torch.optim.SGD(model.parameters())
    loaded = load_together(ALONE, newest, model, optimizer)
    assert loaded.values == {"step": 3, "loop": {"seen": 3}}
    assert sorted(loaded.tensors) == ["model", "optimizer"]
    for group, members in {**tensors}.items():
        assert sorted(loaded.tensors[group]) == sorted(members)
        for name, tensor in members.items():
            assert torch.equal(loaded.tensors[group][name], tensor.detach())
    objects = [path for path in (store.root / "objects").rglob("*") if path.is_file()]
    objects[0].write_bytes(b"?")
    with pytest.raises(CheckpointError):
        load_together(ALONE, newest, model, optimizer)


@pytest.mark.parametrize(
    ("state_bytes", "model_bytes", "is_gathered"),
    [
        (32 << 20, 0, True),
        ((32 << 20) + 1, 0, False),
        (100 << 20, 800 << 20, True),
        ((100 << 20) + 1, 800 << 20, False),
    ],
)
def test_what_is_small_by_itself_or_beside_the_model_is_gathered(
    state_bytes: int, model_bytes: int, is_gathered: bool
) -> None:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(
        torch.empty(model_bytes // 2, dtype=torch.bfloat16, device="meta")
    )
    assert checkpoint_storage.is_gathered(state_bytes, model) == is_gathered


def test_a_state_has_the_bytes_of_all_its_tensors() -> None:
    half = torch.zeros(3, dtype=torch.bfloat16)
    snapshot = Snapshot(
        {"model": {"a": torch.zeros(2, 2), "b": half}, "optimizer": {"c": half}}, {}
    )
    assert checkpoint_storage.size_bytes(snapshot) == 16 + 6 + 6


def test_a_folder_is_seen_by_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    class Elsewhere(Group):
        """A rank on a machine without that folder."""

        rank = 1

        def decide(self, make: Any) -> Any:
            return str(tmp_path / "no such file")

    root = tmp_path / "run" / "checkpoints"
    assert seen_by(ALONE, root) == (True, True)
    assert list(root.iterdir()) == []
    assert seen_by(Elsewhere(), root) == (False, False)


@pytest.mark.parametrize(
    ("placement", "rank", "offsets", "rows"),
    [
        (Shard(0), 0, (0, 0), 2),
        (Shard(0), 2, (4, 0), 1),
        (Shard(0), 3, (5, 0), 0),  # of five rows nothing is left
        (Replicate(), 2, (0, 0), 5),
    ],
)
def test_the_chunk_of_a_rank_is_its_rows_or_all(
    placement: Placement, rank: int, offsets: tuple[int, int], rows: int
) -> None:
    def tensor(*placements: Placement) -> Any:
        mesh = SimpleNamespace(size=lambda: 4, get_local_rank=lambda: rank)
        local = torch.zeros(rows, 3)
        return SimpleNamespace(
            shape=(5, 3), placements=placements, device_mesh=mesh, to_local=lambda: local
        )

    assert own_chunk(tensor(placement)) == TensorChunk(offsets, (rows, 3))
    with pytest.raises(ValueError, match=r"training\.tensor_placement_unsupported\(placement=S.*1"):
        own_chunk(tensor(Shard(1)))
