"""The newest checkpoint as who looks on sees it."""

from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.run.latest_checkpoint import SavedSteps


def test_the_newest_healthy_checkpoint_is_found(tmp_path: Path) -> None:
    saved = SavedSteps(tmp_path)
    assert saved.newest() is None
    store = Store(tmp_path / "checkpoints")
    store.commit({}, {"step": 5}, step=5)
    first = saved.newest()
    assert first is not None
    assert first.step == 5
    assert saved.newest() == first
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
