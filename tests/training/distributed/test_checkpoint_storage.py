"""Checkpoints of real gloo processes: sharded and replicated, read by one of them."""

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.store import Store
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.chunked_version import KEY, load_whole
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.distributed import checkpoint_storage
from infrastructure.training.distributed.checkpoint_storage import (
    load_together,
    save_distributed,
    save_together,
    way_apart,
)
from infrastructure.training.distributed.group import JoinedGroup
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
            outcomes.append(str(error).rpartition(": rank ")[2])
    return outcomes


def test_what_refuses_one_rank_is_an_error_of_all_and_the_next_save_counts(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    outcomes = results_of(
        start_ranks(2, functools.partial(save_on_full_disks, folder=str(tmp_path)))
    )
    full = "1: no space left on rank 1"
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
    with pytest.raises(StorageError, match="JSON values"):
        save_distributed(tmp_path, {"loop": {"x": object()}}, {}, step=1)
    assert Store(tmp_path).versions() == []


@pytest.mark.parametrize(
    "described",
    [
        None,
        {},
        {"tensors": {"a": {}}, "values": [], "paths": {}},
        {"tensors": [], "values": [], "paths": {}},
        {
            "tensors": {"a": {"dtype": "F32", "size": [1 << 40], "chunks": [[[0], [1 << 40]]]}},
            "values": [],
            "paths": {},
        },
        {
            "tensors": {"a": {"dtype": "F32", "size": [2], "chunks": [[[1], [2]]]}},
            "values": [],
            "paths": {},
        },
        {
            "tensors": {"a": {"dtype": "F32", "size": [-2], "chunks": []}},
            "values": [],
            "paths": {},
        },
    ],
)
def test_a_hostile_description_is_refused(tmp_path: Path, described: object) -> None:
    name = save_distributed(tmp_path, state(), {}, step=1)
    assert name is not None
    store = Store(tmp_path)
    manifest = store.read(name)
    values = {KEY: described} if described is not None else {}
    with pytest.raises(CheckpointError, match=r"distributed|several processes"):
        load_whole(store, replace(manifest, values=values))
