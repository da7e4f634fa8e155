"""The newest checkpoint as who looks on sees it."""

import os
from pathlib import Path

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.run.latest_checkpoint import SavedSteps


def test_the_newest_healthy_checkpoint_is_found(tmp_path: Path) -> None:
    saved = SavedSteps(tmp_path)
    assert saved.newest() is None
    store = Store(tmp_path / "checkpoints")
    path = store.manifest_path(store.commit({}, {"step": 5}, step=5))
    os.utime(path, (3000.0, 2000.0))
    first = saved.newest()
    assert first is not None
    assert (first.step, first.saved_at) == (5, 2000.0)
    path.write_bytes(b"{}")
    assert saved.newest() == first, "each is read only once"
    store.commit({}, {"step": 9}, step=9)
    store.commit({}, {"step": 10}, step=10, healthy=False)  # evidence, and never gone on from
    newest = saved.newest()
    assert newest is not None
    assert (newest.step, newest.saved_at >= first.saved_at) == (9, True)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path / "checkpoints")
    store.commit({}, {"step": 5}, step=5)
    name = store.commit({}, {"step": 6}, step=6)
    store.manifest_path(name).write_bytes(b"{}")
    newest = SavedSteps(tmp_path).newest()
    assert newest is not None
    assert newest.step == 5


def test_a_folder_that_cannot_be_read_has_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Store) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Store, "versions", fail)
    assert SavedSteps(tmp_path).newest() is None
