"""Checkpoints are whole and verified, or not there. What a store withstands: tests/faults."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.backup.format.manifest import COPIED_APART
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.writer.writer_process import LOCK_FILE
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.lock import Lock
from infrastructure.models.model_inputs import IN_FORWARD
from infrastructure.run.checkpoint_paths import (
    best_of,
    by_step,
    is_checkpoint,
    step_of,
    verify,
)
from infrastructure.training.checkpoints import checkpoint_manager
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    as_bytes,
    load_checkpoint,
    load_values,
    take_best,
)
from infrastructure.training.checkpoints.chunked_version import KEY
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
    with pytest.raises(ValueError, match=r"backup\.too_few_checkpoints_kept"):
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
    assert ("training.skipping_damaged_checkpoint" in caplog.text) is bad.exists()


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
        assert [step_of(path) for path in manager.collect(wait=True)] == [4]
        manager.begin(snapshot(5))
    finally:
        manager.close()
    assert steps(manager) == [1, 2, 3, 4, 5]


def test_a_small_one_is_written_at_once(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.begin(snapshot(1))
    assert steps(manager) == [1]
    assert [step_of(path) for path in manager.collect()] == [1]


@pytest.mark.parametrize(("more_bytes", "in_background"), [(1, []), (0, [4])])
def test_what_is_as_large_as_the_limit_is_written_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more_bytes: int, in_background: list[int]
) -> None:
    assert checkpoint_manager.BACKGROUND_BYTES == 32 << 20
    tensors, file = snapshot(4).tensors, TensorBytes("U8", (2,), b"{}")
    size = sum(one.nbytes for group in tensors.values() for one in group.values()) + 2
    monkeypatch.setattr(checkpoint_manager, "BACKGROUND_BYTES", size + more_bytes)
    begun, waits = list[Any](), list[bool]()
    writer = SimpleNamespace(
        begin=lambda state, values, **facts: begun.append((state, values, facts)),
        collect=lambda wait: waits.append(wait),
        close=lambda: begun.append("closed"),
    )
    monkeypatch.setattr(
        checkpoint_manager, "BackgroundWriter", lambda *given: begun.append(given) or writer
    )
    manager = CheckpointManager(tmp_path, Retention(3), lambda: {"files/run.json": file})
    manager.begin(snapshot(4), kind="manual", score=0.5)
    assert steps(manager) == ([] if in_background else [4])
    if in_background:
        given, (state, values, facts) = begun
        assert given == (tmp_path, Retention(3))
        assert state.keys() >= {"model/weight", "optimizer/0.exp_avg", "files/run.json"}
        assert (values, facts) == ({"step": 4}, {"step": 4, "kind": "manual", "score": 0.5})
        manager.begin(snapshot(5))
        manager.save(snapshot(6))
        manager.collect()
        assert waits == [True, True, False], "only one is written at a time"
        assert steps(manager) == [6]
        manager.close()
        assert begun[3:] == ["closed"]


def test_who_writes_or_searches_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves the store free again."""
    manager, alone = CheckpointManager(tmp_path), list[str]()

    def watched(name: str) -> Any:
        method = getattr(manager.store, name)

        def call(*given: Any, **named: Any) -> Any:
            assert not Lock(tmp_path / LOCK_FILE).take(wait=False)
            alone.append(name)
            return method(*given, **named)

        return call

    names = ("sweep", "commit", "place", "publish", "remove_all_but", "newest")
    for name in names:
        monkeypatch.setattr(manager.store, name, watched(name))
    manager.save(snapshot(1))
    parts = manager.write_by_parts({"step": 2})
    parts.add(as_bytes({"model/a": torch.ones(1)}))
    parts.commit()
    manager.newest()
    assert {*alone} == {*names}
    assert alone[0] == "sweep"
    assert Lock(tmp_path / LOCK_FILE).take(wait=False)


def test_nothing_left_to_resume_from_gives_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = CheckpointManager(tmp_path, Retention(9))

    def refusal() -> str:
        with pytest.raises(CheckpointError) as raised:
            CheckpointManager(tmp_path).newest()
        return str(raised.value)

    about = f"run.nothing_to_resume_from(root={tmp_path}, reason="
    why = "run.no_checkpoint_saved_yet(), advice=run.save_more_often()"
    assert refusal() == f"{about}{why})"
    damage = []
    for step in (1, 2):
        path = manager.save(snapshot(step))
        file = files_of(path)[1]
        size = file.stat().st_size
        cut(file)
        problem = f"backup.object_size_mismatch(size={size - 10}, expected_size={size})"
        problem = f"backup.object_problem(hash={file.name[:12]}, problem={problem})"
        damage.insert(0, f"{path.stem[:12]}: {problem}")
    advice = "advice=run.restore_intact_checkpoint()"
    assert refusal() == f"{about}{'; '.join(damage)}, {advice})"
    for text in damage:
        assert f"training.skipping_damaged_checkpoint(damage={text})" in caplog.text


class Apart:
    """Where other machines store their parts; it may be away."""

    error: Exception | None = OSError("it is away")

    def link(self) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(store="the store of the destination")


def test_parts_of_other_machines_are_fetched_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, apart, fetched = CheckpointManager(tmp_path), Apart(), list[Any]()
    path = manager.save(snapshot(1))
    manager.apart = lambda: apart  # type: ignore[assignment,return-value]

    def fetch(*given: Any, **named: Any) -> None:
        assert not Lock(tmp_path / LOCK_FILE).take(wait=False), "no other process writes"
        fetched.append((given, named))

    monkeypatch.setattr(checkpoint_manager, "fetch_objects", fetch)
    manager.fetch_parts(path)  # whole already: nothing is asked of the destination
    manifest = replace(manager.store.read(path.stem), values={"step": 1, COPIED_APART: ["ab" * 32]})
    monkeypatch.setattr(manager.store, "read", lambda name: manifest)
    for error in (OSError("it is away"), StorageError("another disk"), ValueError("no address")):
        apart.error = error
        with pytest.raises(CheckpointError) as raised:
            manager.fetch_parts(path)
        assert str(raised.value) == f"run.foreign_parts_unreadable(error={error})"
    assert fetched == []
    apart.error = None
    manager.fetch_parts(path)
    expected = ("the store of the destination", manifest, manager.store)
    assert fetched == [(expected, {"run_files": False})]
    manager.apart = lambda: None
    manager.fetch_parts(path)
    assert len(fetched) == 1


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


@pytest.mark.parametrize("least_bytes", [0, 1 << 20])
def test_facts_and_rotation_of_versions_are_the_same_wherever_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_bytes: int
) -> None:
    monkeypatch.setattr(checkpoint_manager, "BACKGROUND_BYTES", least_bytes)
    manager = CheckpointManager(tmp_path, Retention(3))
    try:
        for step in range(1, 6):
            manager.begin(snapshot(step), kind="manual", score=float(step))
        manager.begin(snapshot(6), kind="emergency", healthy=False)
    finally:
        manager.close()
    manifests = [manager.store.read(path.stem) for path in manager.checkpoints()]
    assert [(m.step, m.kind, m.score, m.healthy) for m in manifests] == [
        (3, "manual", 3.0, True),
        (4, "manual", 4.0, True),
        (5, "manual", 5.0, True),
        (6, "emergency", None, False),
    ]
    assert [manager.is_healthy(path) for path in manager.checkpoints()] == [True, True, True, False]
    assert step_of(manager.newest()) == 5


RUN_FILE = {"files/run.json": TensorBytes("U8", (2,), b"{}")}


def test_a_checkpoint_that_comes_in_parts_is_whole_and_rotated(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, Retention(2), lambda: RUN_FILE)
    for step in (1, 2, 3):
        saved = snapshot(step)
        parts = manager.write_by_parts(saved.values, kind="manual", score=step / 2)
        for group, tensors in saved.tensors.items():
            parts.add(as_bytes({f"{group}/{name}": one for name, one in tensors.items()}))
            parts.add({})
        assert steps(manager) == list(range(max(1, step - 2), step)), "not before it is whole"
        parts.commit()
        assert [step_of(path) for path in manager.collect()] == [step]
    assert steps(manager) == [2, 3]
    newest = manager.newest()
    assert len(manager.store.read(newest.stem).packs) == 4  # three groups, and the files
    manifest = manager.store.read(newest.stem)
    assert (manifest.kind, manifest.score) == ("manual", 1.5)
    assert manifest.tensors.keys() >= RUN_FILE.keys()
    loaded = load_checkpoint(newest)
    assert loaded.tensors.keys() == saved.tensors.keys()
    for group, tensors in saved.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(loaded.tensors[group][name], tensor)


def test_parts_that_hold_the_same_are_one_and_each_is_read_back(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    parts = manager.write_by_parts({"step": 2})
    parts.add(as_bytes({"model/a": torch.ones(2), "optimizer/a": torch.zeros(3)}))
    parts.add(as_bytes({"other/a": torch.full((4,), 7.0), "model/a": torch.ones(2)}))
    parts.commit()
    newest = manager.newest()
    assert len(manager.store.read(newest.stem).packs) == 3
    found = load_checkpoint(newest).tensors
    assert {name: group["a"].tolist() for name, group in found.items()} == {
        "model": [1.0] * 2,
        "optimizer": [0.0] * 3,
        "other": [7.0] * 4,
    }


def test_a_part_that_the_disk_refuses_makes_no_version_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CheckpointManager(tmp_path)
    good = manager.save(snapshot(1))
    parts = manager.write_by_parts({"step": 2})
    with monkeypatch.context() as patch:

        def refuse(tensors: Any) -> None:
            raise StorageError(f"the disk is full for {[*tensors]}")

        patch.setattr(manager.store, "place", refuse)
        for name in "ac":
            parts.add(as_bytes({f"model/{name}": torch.ones(1)}))
    parts.add(as_bytes({"model/b": torch.ones(1)}))  # whoever brings the parts brings them all
    with pytest.raises(StorageError, match="model/a"):
        parts.commit()
    assert (manager.collect(), manager.checkpoints()) == ([], [good])
    manager.save(snapshot(3))
    assert steps(manager) == [1, 3]


@pytest.mark.parametrize("by_parts", [False, True])
def test_what_a_killed_writer_has_left_goes_with_the_next_version(
    tmp_path: Path, by_parts: bool
) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(snapshot(1))
    half_written = tmp_path / "tmp" / "half-written"
    half_written.parent.mkdir(exist_ok=True)
    half_written.touch()
    if by_parts:
        manager.write_by_parts({"step": 3}).commit()
    else:
        manager.save(snapshot(3))
    assert steps(manager) == [1, 3]
    assert not half_written.exists()


def test_parts_keep_as_many_versions_as_the_run_does(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, retention=Retention(keep_last=4))
    for step in range(1, 7):
        parts = manager.write_by_parts({"step": step})
        parts.add(as_bytes({"model/a": torch.ones(1)}))
        parts.commit()
    assert steps(manager) == [3, 4, 5, 6]


def test_files_of_the_run_that_cannot_be_read_cost_no_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> dict[str, TensorBytes]:
        raise OSError("it is away")

    version = CheckpointManager(tmp_path, run_files=refuse).save(snapshot(1))
    assert "run.run_files_not_in_checkpoint(error=it is away)" in caplog.text
    verify(version)
    assert load_checkpoint(version).tensors.keys() == snapshot(1).tensors.keys()


def test_where_the_tensors_lie_is_no_value_of_the_training(tmp_path: Path) -> None:
    saved = snapshot(1)
    values = {**saved.values, "loss": 2.5}
    saved.values |= {"loss": 2.5, KEY: {"tensors": {}}, COPIED_APART: True}
    assert load_values(CheckpointManager(tmp_path).save(saved)).values == values


LAST_STEP, OF_THE_LAST = 6, -1.0


def model_of(value: float) -> torch.nn.Module:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def checkpoints_in(folder: Path, scores: dict[int, float | None]) -> Path:
    """A checkpoint of each step, whose weights are its number."""
    manager = CheckpointManager(folder, Retention(9))
    for step, score in scores.items():
        tensors = {"model": model_of(step).state_dict()}
        manager.save(Snapshot(tensors, {"step": step}), score=score)
    return folder


@pytest.mark.parametrize(
    ("scores", "step"),
    [
        ({}, LAST_STEP),
        ({2: None, 4: None}, LAST_STEP),  # nothing was measured
        ({2: 0.5, 4: 0.25, 6: 0.75}, 4),
        ({2: 0.25, 4: 0.5, 6: None}, 2),
        ({2: 0.5, 4: 0.75, 6: 0.25}, LAST_STEP),
    ],
)
def test_the_finished_model_is_the_best_one_where_something_was_measured(
    tmp_path: Path, scores: dict[int, float | None], step: int
) -> None:
    model = model_of(OF_THE_LAST)
    assert take_best(model, checkpoints_in(tmp_path, scores), LAST_STEP) == step
    expected = OF_THE_LAST if step == LAST_STEP else float(step)
    assert {x for p in model.parameters() for x in p.flatten().tolist()} == {expected}


def test_what_cannot_be_taken_leaves_the_last_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No rank of a model that is spread holds all of it; a damaged checkpoint holds nothing."""
    checkpoints = checkpoints_in(tmp_path, {2: 0.25, 4: 0.5})
    model = model_of(OF_THE_LAST)
    setattr(model, IN_FORWARD, None)
    assert take_best(model, checkpoints, LAST_STEP) == LAST_STEP
    assert "run.best_model_not_whole()" in caplog.text
    delattr(model, IN_FORWARD)
    store = CheckpointManager(checkpoints).store
    best = best_of(store)
    assert best is not None
    for pack in store.read(best.stem).packs:
        store.objects.path_of(pack.hash).unlink()
    assert take_best(model, checkpoints, LAST_STEP) == LAST_STEP
    assert "run.best_model_unreadable(error=backup." in caplog.text
    assert {x for p in model.parameters() for x in p.flatten().tolist()} == {OF_THE_LAST}
