"""Which versions rotation leaves."""

from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format import retention
from infrastructure.backup.format.retention import Retention, retention_of, versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.config.sections.training_config import TrainingConfig
from tests.faults.memory_files import MemoryFiles
from tests.faults.store_history import tensors_at


def kept_steps(policy: Retention, versions: list[dict[str, Any]]) -> list[int]:
    store = Store(Path("store"), MemoryFiles())
    for step, facts in enumerate(versions, start=1):
        store.commit(tensors_at(step), {}, step=step, **facts)
    store.remove_all_but(versions_to_keep(store, policy))
    return sorted(store.read(name).step for name in store.versions())


def test_the_newest_stay() -> None:
    assert kept_steps(Retention(2), [{}] * 5) == [4, 5]


def test_of_one_step_that_was_saved_twice_an_older_step_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (1, 2, 3, 3, 3):
        store.commit(tensors_at(step), {}, step=step)
    store.remove_all_but(versions_to_keep(store, Retention(2)))
    assert sorted(store.read(name).step for name in store.versions()) == [2, 3, 3, 3]


def test_the_best_stays() -> None:
    scores: list[dict[str, Any]] = [{"score": s} for s in (3.0, 1.0, 2.0, 2.5, 4.0)]
    assert kept_steps(Retention(2, keep_best=1), scores) == [2, 4, 5]
    assert kept_steps(Retention(2, keep_best=2), scores) == [2, 3, 4, 5]


def test_a_damaged_best_is_not_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step, score in enumerate((2.0, 1.0, 3.0, 4.0), start=1):
        name = store.commit(tensors_at(step), {}, step=step, score=score)
        if step == 2:
            own = set(store.read(name).packs) - set(store.read(store.versions()[1]).packs)
            store.objects.path_of(own.pop().hash).write_bytes(b"lost")
    kept = versions_to_keep(Store(tmp_path), Retention(2, keep_best=1))
    assert sorted(int(name[:12]) for name in kept) == [1, 3, 4]


def test_the_newest_emergency_stays() -> None:
    versions: list[dict[str, Any]] = [{}, {"kind": "emergency"}, {"kind": "emergency"}, {}, {}, {}]
    assert kept_steps(Retention(2), versions) == [3, 5, 6]


def test_what_is_not_healthy_is_not_counted() -> None:
    versions: list[dict[str, Any]] = [{}, {}, {}, {"healthy": False, "score": 0.0}]
    assert kept_steps(Retention(2, keep_best=1), versions) == [2, 3, 4]


def test_one_is_too_few() -> None:
    with pytest.raises(ValueError, match=r"backup\.too_few_checkpoints_kept\(count=1\)"):
        Retention(1)


def test_while_too_few_are_whole_everything_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = {store.commit(tensors_at(1), {}, step=1) for _ in range(3)}
    assert versions_to_keep(store, Retention(2)) == names


def test_one_whose_manifest_is_damaged_is_no_good_one_and_no_reason_to_fail(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    names = [store.commit(tensors_at(step), {}, step=step) for step in (1, 2, 3, 4)]
    store.manifest_path(names[2]).write_bytes(b"?")
    assert versions_to_keep(store, Retention(2)) == {*names[1:]}


def test_versions_are_kept_as_configured() -> None:
    training = TrainingConfig(keep_checkpoints=4, keep_best=3)
    assert retention_of(training) == Retention(keep_last=4, keep_best=3)


def test_of_the_best_no_more_are_read_than_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    for step in (1, 2, 3, 4, 5):
        store.commit(tensors_at(step), {}, step=step, score=float(step))
    read: list[int] = []
    real = retention.is_good

    def noted(store: Store, name: str) -> bool:
        read.append(int(name[:12]))
        return real(store, name)

    monkeypatch.setattr(retention, "is_good", noted)
    versions_to_keep(store, Retention(2, keep_best=1))
    assert read == [5, 4, 1]


def test_the_best_is_the_best_on_the_rows_of_the_newest_score(tmp_path: Path) -> None:
    store = Store(tmp_path)
    scores = ((0.1, "old"), (0.5, "new"), (0.4, "new"), (0.9, "new"), (0.8, "new"))
    for step, (score, rows) in enumerate(scores, start=1):
        store.commit(tensors_at(step), {"measured_on": rows}, step=step, score=score)
    kept = versions_to_keep(store, Retention(2, keep_best=1))
    assert sorted(int(name[:12]) for name in kept) == [3, 4, 5]


def test_evidence_among_the_newest_stays_and_replaces_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in range(1, 8):
        store.commit(tensors_at(step), {}, step=step, healthy=step not in (2, 5, 7))
    kept = versions_to_keep(store, Retention(2))
    assert sorted(int(name[:12]) for name in kept) == [4, 5, 6, 7]
