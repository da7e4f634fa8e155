"""Checkpoints are whole and verified, or not there."""

import json
from pathlib import Path

import pytest
import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
    verify,
)
from infrastructure.training.checkpoints.snapshot import Snapshot


def snapshot(step: int) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {"weight": torch.randn(3, 4, generator=generator)},
        "optimizer": {"0.exp_avg": torch.randn(3, 4, generator=generator)},
        "random": {"torch": torch.get_rng_state()},
    }
    return Snapshot(tensors, {"step": step})


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    saved = snapshot(7)
    path = CheckpointManager(tmp_path).save(saved)
    loaded = load_checkpoint(path)
    assert path.name == "step-00000007"
    assert loaded.values == saved.values
    for group, tensors in saved.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(loaded.tensors[group][name], tensor)


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=2)
    for step in (1, 5, 9, 12):
        manager.save(snapshot(step))
    assert [path.name for path in manager.checkpoints()] == ["step-00000009", "step-00000012"]


def test_keeping_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep at least 2"):
        CheckpointManager(tmp_path, keep=1)


def test_the_same_step_again_replaces_the_first(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(snapshot(3))
    again = snapshot(3)
    again.values["note"] = "second"
    assert load_checkpoint(manager.save(again)).values["note"] == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


FILES = ["model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("damage", [flip_a_bit, cut, Path.unlink])
@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_every_damage_is_noticed_and_the_one_before_serves(
    tmp_path: Path, name: str, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    manager = CheckpointManager(tmp_path)
    good, bad = manager.save(snapshot(1)), manager.save(snapshot(2))
    damage(bad / name)  # type: ignore[operator]
    with pytest.raises(CheckpointError):
        load_checkpoint(bad)
    assert manager.newest() == good
    assert "skipping a damaged checkpoint" in caplog.text


def test_nothing_left_to_resume_from_says_why(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint was saved yet"):
        manager.newest()
    cut(manager.save(snapshot(1)) / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is cut"):
        manager.newest()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    path = CheckpointManager(tmp_path).save(snapshot(1))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="checkpoint format 99"):
        verify(path)


def test_a_failed_save_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CheckpointManager(tmp_path)
    good = manager.save(snapshot(1))
    broken = snapshot(2)
    broken.values["loss"] = float("nan")  # strict JSON refuses it: a failure late in the save
    with pytest.raises(ValueError):
        manager.save(broken)
    assert [path.name for path in tmp_path.iterdir()] == [good.name]
    verify(good)


def test_an_unfinished_directory_is_no_checkpoint(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    good = manager.save(snapshot(1))
    leftover = tmp_path / ".step-00000002.abcd.part"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    assert manager.newest() == good
    manager.save(snapshot(3))
    assert not leftover.exists()


def test_no_pickle_is_written(tmp_path: Path) -> None:
    path = CheckpointManager(tmp_path).save(snapshot(1))
    for file in path.iterdir():
        head = file.read_bytes()
        assert not head.startswith((b"\x80", b"PK"))
