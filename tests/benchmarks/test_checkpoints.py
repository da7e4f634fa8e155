"""G6, G7, G8 and G13 in a short form: the parts that no busy machine can change.

How fast things are is for `make prove-durability`; here small states go through the same code.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import checkpoint_bytes, restore_speed
from infrastructure.backup.format.objects import ObjectFiles
from infrastructure.backup.format.store import Store
from tests.forks import run_forked

SMALL_MEGABYTES = 6


def test_a_save_writes_little_more_than_what_changed() -> None:
    found = checkpoint_bytes.measure(SMALL_MEGABYTES, peers=False)
    assert found["missed"] == 0
    assert found["100%"]["temper"] > found["5%"]["temper"] > found["0%"]["temper"] > 0


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
