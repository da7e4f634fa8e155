"""A checkpoint by its path: its step, the newest of a step, the best one."""

from pathlib import Path

import pytest

from infrastructure.backup.format.manifest import MEASURED_ON
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from infrastructure.run.checkpoint_paths import best_of, by_step, is_checkpoint, step_of, verify


def commit(store: Store, step: int, score: float | None = None, **more: object) -> Path:
    healthy = bool(more.pop("healthy", True))
    tensors = {"model/w": TensorBytes("U8", (1,), bytes([step]))}
    name = store.commit(tensors, more, step=step, score=score, healthy=healthy)
    return store.manifest_path(name)


def test_the_newest_of_a_step_counts_and_a_damaged_one_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    commit(store, 3)
    first, second = commit(store, 4), commit(store, 3)
    assert by_step(store) == {4: first, 3: second}
    assert [step_of(path) for path in (first, second)] == [4, 3]
    monkeypatch.chdir(first.parent)
    assert step_of(Path(first.name)) == 4
    first.write_bytes(b"{}")
    assert by_step(store) == {3: second}
    damage = f"backup.skips_damaged_checkpoint(url={tmp_path}, damage={first.stem}: "
    assert damage in caplog.text
    with pytest.raises(CheckpointError):
        step_of(first)


def test_the_best_has_the_lowest_score_of_those_measured_on_the_same_rows(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert best_of(store) is None
    commit(store, 1)
    assert best_of(store) is None
    commit(store, 2, 0.1, **{MEASURED_ON: "other rows"})
    commit(store, 3, 1.0, **{MEASURED_ON: "rows"})
    best = commit(store, 4, 0.5, **{MEASURED_ON: "rows"})
    commit(store, 5, 0.75, **{MEASURED_ON: "rows"})
    commit(store, 6, 0.25, healthy=False, **{MEASURED_ON: "rows"})
    assert best_of(store) == best
    commit(store, 7, 0.5, **{MEASURED_ON: "rows"})
    assert best_of(store) == best, "the first of two equal ones"


def test_a_checkpoint_has_its_place_and_each_of_its_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = commit(store, 3)
    assert is_checkpoint(path)
    assert not is_checkpoint(tmp_path / path.name)
    assert not is_checkpoint(path.with_name("notes.json"))
    verify(path)
    [pack] = store.read(path.stem).packs
    store.objects.path_of(pack.hash).write_bytes(b"other")
    with pytest.raises(CheckpointError):
        verify(path)


def test_a_damaged_copy_of_a_run_file_does_not_damage_a_checkpoint(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tensors = {name: TensorBytes("U8", (1,), b"1") for name in ("model/w", "files/a@000000000")}
    path = store.manifest_path(store.commit(tensors, {}, step=3))
    manifest = store.read(path.stem)
    pack = manifest.packs[manifest.tensors["files/a@000000000"].pack]
    store.objects.path_of(pack.hash).write_bytes(b"other")
    verify(path)
