"""Checkpoints of real gloo processes: sharded and replicated, read by one of them."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.training.checkpoints.chunked_version import KEY, load_whole
from infrastructure.training.distributed.checkpoint_storage import save_distributed
from tests.faults.pickle_scan import files_with_pickles
from tests.forks import forked_python
from tests.slow import slow_but

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
