"""G6, G7, G8 and G13 in a short form: the parts that no busy machine can change.

How fast things are is for `make prove-durability`; here small states go through the same code.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import checkpoint_bytes, checkpoint_drag, checkpoint_stall, restore_speed
from benchmarks.states import LORA, adam_state, ratios, size_bytes
from infrastructure.backup.format import store as store_module
from infrastructure.backup.format.objects import ObjectFiles
from infrastructure.backup.format.store import Store
from infrastructure.training.checkpoints import checkpoint_manager
from tests.forks import run_forked
from tests.slow import slow

SMALL_MEGABYTES = 12


def test_a_save_writes_little_more_than_what_changed() -> None:
    found = checkpoint_bytes.measure(SMALL_MEGABYTES, peers=False)
    assert found["missed"] == 0
    assert found["100 %"]["temper"] > found["5 %"]["temper"] > found["0 %"]["temper"] > 0


@slow
def test_writing_everything_anew_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "_held_already", lambda *arguments: {})
    assert checkpoint_bytes.measure(SMALL_MEGABYTES, peers=False)["missed"] >= 1


@slow
def test_keeping_what_is_mostly_dead_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = checkpoint_bytes.history(tmp_path / "bounded", SMALL_MEGABYTES)
    monkeypatch.setattr(store_module, "is_mostly_dead", lambda pack, living_bytes: False)
    pinned = checkpoint_bytes.history(tmp_path / "pinned", SMALL_MEGABYTES)
    assert pinned["disk_by_state"] > bounded["disk_by_state"]


def run_in_fork(command: list[str], *, cwd: Path, text: bool, **_: Any) -> Any:
    return run_forked(command, cwd=cwd, text=text)


def test_loading_takes_no_more_memory_than_what_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_speed, "subprocess", SimpleNamespace(run=run_in_fork))
    found = restore_speed.measure(tmp_path, 150, rounds=1)
    assert found["extra_memory_of_largest_pack"] <= 1.1
    assert found["verify_of_hash"] > 0
    assert found["load_of_read"] > 0


def test_reading_a_pack_twice_over_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    state = {"model/a": torch.zeros(1000)}
    manifest = store.read(store.commit(checkpoint_bytes.as_bytes(state), {}, step=1))
    counted: list[int] = []
    read = ObjectFiles.read
    into = type(store.operations).read_into

    def counting(self: object, path: Path, memory: memoryview) -> object:
        counted.append(len(memory))
        return into(self, path, memory)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store.operations), "read_into", counting)
    dict(store.load(manifest))
    assert counted == [manifest.packs[0].size_bytes]
    monkeypatch.setattr(ObjectFiles, "read", lambda *a: (read(*a), read(*a))[1])
    dict(store.load(manifest))
    assert len(counted) == 3


@pytest.mark.parametrize("name", checkpoint_stall.SYSTEMS)
@pytest.mark.filterwarnings("ignore")
def test_every_way_to_save_is_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_manager, "BACKGROUND_BYTES", 0)
    state = adam_state(LORA[:10])
    kept = {key: tensor.clone() for key, tensor in state.items()}
    found = checkpoint_stall.measure(name, state, kept, rounds=2)
    assert found["median"] > 0
    assert found["first"] > 0


def test_a_long_stall_would_show() -> None:
    good = {"median": 1.1, "p90": 1.4, "first": 3.0}
    assert not checkpoint_stall.is_missed({"temper": good})
    assert all(checkpoint_stall.is_missed({"temper": {**good, name: 6.5}}) for name in good)


@slow
def test_the_drag_of_a_save_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_drag, "NUM_STEPS", 5)
    found = checkpoint_drag.measure(60, rounds=1)
    assert found["temper"]["seconds_to_commit"] > 0
    assert found["a thread"]["step_ratio"] > 0


def test_ratios_are_of_neighbours() -> None:
    assert ratios([(2.0, 1.0), (3.0, 3.0), (8.0, 2.0)]) == {"median": 2.0, "p90": 4.0}
    assert size_bytes({"a": torch.zeros(3)}) == 12
