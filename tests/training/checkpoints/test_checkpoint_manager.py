"""Checkpoints are whole and verified, or not there. What a store withstands: tests/faults."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.core.errors import CheckpointError
from infrastructure.run.checkpoint_paths import (
    by_step,
    is_checkpoint,
    step_of,
    verify,
)
from infrastructure.training.checkpoints import checkpoint_manager
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.snapshot import Snapshot


def snapshot(step: int) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {"weight": torch.randn(3, 4, generator=generator)},
        "optimizer": {"0.exp_avg": torch.randn(3, 4, generator=generator)},
        "random": {"torch": torch.randint(256, (64,), generator=generator, dtype=torch.uint8)},
    }
    return Snapshot(tensors, {"step": step})


def steps(manager: CheckpointManager) -> list[int]:
    return [step_of(path) for path in manager.checkpoints()]


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    saved = snapshot(7)
    path = CheckpointManager(tmp_path).save(saved)
    loaded = load_checkpoint(path)
    assert is_checkpoint(path)
    assert step_of(path) == 7
    assert loaded.values == saved.values
    for group, tensors in saved.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(loaded.tensors[group][name], tensor)


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, Retention(2))
    for step in (1, 5, 9, 12):
        manager.save(snapshot(step))
    assert steps(manager) == [9, 12]


def test_keeping_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep at least 2"):
        CheckpointManager(tmp_path, Retention(1))


def test_of_one_step_the_newer_counts(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(snapshot(3))
    again = snapshot(3)
    again.values["note"] = "second"
    manager.save(again)
    assert load_checkpoint(by_step(manager.store)[3]).values["note"] == "second"


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def files_of(checkpoint: Path) -> list[Path]:
    store = CheckpointManager(checkpoint.parent.parent).store
    packs = store.read(checkpoint.stem).packs
    return [checkpoint, *(store.objects.path_of(pack.hash) for pack in packs)]


@pytest.mark.parametrize("damage", [flip_a_bit, cut, Path.unlink])
@pytest.mark.parametrize("index", range(3))
def test_every_damage_is_noticed_and_the_one_before_serves(
    tmp_path: Path,
    index: int,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = CheckpointManager(tmp_path).save(snapshot(1))
    bad = CheckpointManager(tmp_path).save(snapshot(2))
    damage(files_of(bad)[index])
    with pytest.raises(CheckpointError):
        load_checkpoint(bad)
    with pytest.raises(CheckpointError):
        verify(bad)
    assert CheckpointManager(tmp_path).newest() == good
    assert ("skipping a damaged checkpoint" in caplog.text) is bad.exists()


def test_damage_is_no_reason_to_remove_anything(tmp_path: Path) -> None:
    """Rotation counts only checkpoints that verify."""
    for step in (1, 2, 3):
        CheckpointManager(tmp_path, Retention(9)).save(snapshot(step))
    damaged = by_step(CheckpointManager(tmp_path).store)[3]
    flip_a_bit(files_of(damaged)[1])
    manager = CheckpointManager(tmp_path, Retention(2))
    manager.save(snapshot(4))
    assert steps(manager) == [2, 3, 4]
    manager.save(snapshot(5))
    assert steps(manager) == [4, 5]


def test_a_large_one_is_written_while_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_manager, "BACKGROUND_BYTES", 0)
    manager = CheckpointManager(tmp_path, Retention(9))
    try:
        manager.begin(snapshot(1))
        manager.begin(snapshot(2))  # waits for the first
        manager.save(snapshot(3))  # and this for the second, so that it is the newest
        assert [step_of(path) for path in manager.collect()] == [1, 2]
        assert manager.collect(wait=True) == []
        assert steps(manager) == [1, 2, 3]
        manager.begin(snapshot(4))
    finally:
        manager.close()
    assert steps(manager) == [1, 2, 3, 4]


def test_a_small_one_is_written_at_once(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.begin(snapshot(1))
    assert steps(manager) == [1]
    assert [step_of(path) for path in manager.collect()] == [1]


def test_nothing_left_to_resume_from_gives_the_reason(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint was saved yet"):
        manager.newest()
    cut(files_of(manager.save(snapshot(1)))[1])
    with pytest.raises(CheckpointError, match=r"has .* bytes instead of"):
        CheckpointManager(tmp_path).newest()


def test_a_failed_save_leaves_what_was_there(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    good = manager.save(snapshot(1))
    broken = snapshot(2)
    broken.values["loss"] = float("nan")  # strict JSON refuses it: a failure late in the save
    with pytest.raises(ValueError, match="JSON compliant"):
        manager.save(broken)
    assert manager.checkpoints() == [good]
    verify(good)


def test_an_optimizer_that_remembers_nothing(tmp_path: Path) -> None:
    saved = snapshot(1)
    saved.tensors["optimizer"] = {}
    assert "optimizer" not in load_checkpoint(CheckpointManager(tmp_path).save(saved)).tensors


def test_no_pickle_is_written(tmp_path: Path) -> None:
    CheckpointManager(tmp_path).save(snapshot(1))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"]
    assert len(files) == 4
    assert not any(path.read_bytes().startswith((b"\x80", b"PK")) for path in files)


@pytest.mark.parametrize("in_background", [False, True])
def test_compressed_checkpoints_are_smaller_and_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_background: bool
) -> None:
    if in_background:
        monkeypatch.setattr(checkpoint_manager, "BACKGROUND_BYTES", 0)
    saved = Snapshot({"model": {"w": torch.arange(100_000, dtype=torch.float32)}}, {"step": 3})
    sizes = {}
    for compress in (False, True):
        directory = tmp_path / str(compress)
        manager = CheckpointManager(directory, compress=compress)
        manager.begin(saved)
        manager.close()
        loaded = load_checkpoint(manager.newest())
        assert torch.equal(loaded.tensors["model"]["w"], saved.tensors["model"]["w"])
        objects = (directory / "objects").rglob("*")
        sizes[compress] = sum(path.stat().st_size for path in objects if path.is_file())
    assert sizes[True] < 0.8 * sizes[False]
