import os
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.features.stackwise.training import activation_cache, time_step_caches
from infrastructure.features.stackwise.training.activation_cache import (
    CACHES,
    ActivationCache,
    Cache,
    Pages,
    folder_bytes,
    is_unused,
    trunk_hash,
)
from infrastructure.features.stackwise.training.time_step_caches import TimeStepCaches, num_kept
from tests.features.stackwise.training.memory_cache import MemoryCache
from tests.features.stackwise.training.trunks import HIDDEN, Trunk, examples, expected, ids_of

ROWS = examples(12)
IDS = ids_of(ROWS)
PAGES = Pages(ROWS, 4)
TRUNK = Trunk()
HASH = trunk_hash(TRUNK.state_dict().items())


def key(time_step: int = 0, unit: int = 1, **others: Any) -> dict[str, Any]:
    return {"time_step": time_step, "unit": unit, "trunk_hash": f"{HASH}{unit}", **others}


def open_cache(
    caches: TimeStepCaches, time_step: int = 0, unit: int = 1, **others: Any
) -> ActivationCache:
    compute = others.pop("compute", TRUNK)
    cache = caches.open(key(time_step, unit, **others), PAGES, compute, hidden_size=HIDDEN)
    assert isinstance(cache, ActivationCache)
    return cache


def on_disk(root: Path) -> list[tuple[int, int]]:
    keys = [time_step_caches._read_key(path) for path in root.iterdir() if path.name[0] != "."]
    return sorted((found["time_step"], found["unit"]) for found in keys if found)


@pytest.mark.parametrize("size", [1, 2, None])
def test_time_steps_outside_epochs_inside_build_each_once(tmp_path: Path, size: int | None) -> None:
    trunk = Trunk()
    caches = TimeStepCaches(tmp_path, size, num_time_steps=4)
    for time_step in range(4):
        for _epoch in range(3):
            cache = open_cache(caches, time_step, compute=trunk)
            assert cache.read(IDS) is not None
    assert trunk.num_calls == 4 * len(PAGES)
    kept = 4 if size is None else size
    assert on_disk(tmp_path) == [(time_step, 1) for time_step in range(4 - kept, 4)]
    caches.close()


def test_epochs_outside_build_again_each_time_with_one_kept(tmp_path: Path) -> None:
    """What the order of the loop is worth: the least recently used one is always the next."""
    trunk = Trunk()
    caches = TimeStepCaches(tmp_path, 1, num_time_steps=4)
    for _epoch in range(3):
        for time_step in range(4):
            open_cache(caches, time_step, compute=trunk)
    assert trunk.num_calls == 4 * 3 * len(PAGES)
    caches.close()


def test_the_least_recently_used_time_step_goes(tmp_path: Path) -> None:
    caches = TimeStepCaches(tmp_path, 2, num_time_steps=3)
    for time_step in (0, 1, 0, 2):
        open_cache(caches, time_step)
    assert on_disk(tmp_path) == [(0, 1), (2, 1)]
    caches.close()


def test_a_run_that_goes_on_keeps_to_its_size(tmp_path: Path) -> None:
    first = TimeStepCaches(tmp_path, 2, num_time_steps=5)
    for time_step in (0, 1):
        open_cache(first, time_step)
    first.close()
    again = TimeStepCaches(tmp_path, 2, num_time_steps=5)
    trunk = Trunk()
    open_cache(again, 1, compute=trunk)
    assert trunk.num_calls == 0
    open_cache(again, 2, compute=trunk)
    assert on_disk(tmp_path) == [(1, 1), (2, 1)]
    again.close()


def test_stack_drops_the_older_unit_when_the_newer_one_is_whole(tmp_path: Path) -> None:
    caches = TimeStepCaches(tmp_path, None, num_time_steps=2, num_boundaries=3)
    older = [open_cache(caches, time_step, 1) for time_step in range(2)]
    seen = []

    def compute(page: list[Any]) -> list[torch.Tensor]:
        seen.append(older[0].read(PAGES.ids(0)) is not None)  # still there to begin from
        return TRUNK(page)

    open_cache(caches, 0, 2, compute=compute)
    assert all(seen)
    assert on_disk(tmp_path) == [(0, 2), (1, 1)]
    caches.close()


def test_rack_keeps_all_boundaries(tmp_path: Path) -> None:
    caches = TimeStepCaches(tmp_path, None, mode="rack", num_boundaries=3)
    for unit in (1, 2, 3):
        open_cache(caches, 0, unit)
    assert on_disk(tmp_path) == [(0, 1), (0, 2), (0, 3)]
    caches.discard()
    assert on_disk(tmp_path) == []


def test_a_trunk_that_changed_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    caches = TimeStepCaches(tmp_path, None)
    old = open_cache(caches)
    changed = Trunk(seed=5)
    cache = caches.open({**key(), "trunk_hash": "another"}, PAGES, changed, hidden_size=HIDDEN)
    assert not old.folder.exists()
    right = expected(changed, PAGES)
    read = cache.read(IDS)
    assert read is not None
    assert all(torch.equal(value, right[i]) for i, value in zip(IDS, read, strict=True))
    caches.close()


class TestBudget:
    def test_each_cache_gets_the_same_part(self, tmp_path: Path) -> None:
        """Whatever else lies on the disk: else a run that goes on would cache other examples."""
        caches = TimeStepCaches(tmp_path, None, num_time_steps=3, budget_bytes=3 * 2500)
        assert caches.bytes_each == 2500
        found = [open_cache(caches, time_step).num_pages for time_step in range(3)]
        assert len(set(found)) == 1
        assert 0 < found[0] < len(PAGES)
        assert sum(p.stat().st_size for p in tmp_path.glob("*/*.page")) <= 3 * 2500
        caches.close()

    def test_how_many_are_there_at_once(self) -> None:
        assert num_kept(1, 1, "stack") == 1
        assert num_kept(1, 8, "stack") == 2
        assert num_kept(10, 8, "stack") == 11
        assert num_kept(10, 8, "rack") == 80

    def test_what_others_left_goes_when_the_budget_needs_it(self, tmp_path: Path) -> None:
        for run in ("first", "second"):
            old = TimeStepCaches(tmp_path, 1)
            open_cache(old, run=run)
            old.close()
        stale = sorted(tmp_path.iterdir(), key=time_step_caches._last_use)
        one = folder_bytes(stale[0])
        enough = TimeStepCaches(tmp_path, 1, budget_bytes=4 * one)
        open_cache(enough, run="third")
        assert all(folder.exists() for folder in stale)
        enough.discard()
        tight = TimeStepCaches(tmp_path, 1, budget_bytes=2 * one + one // 2)
        cache = open_cache(tight, run="third")
        assert [folder.exists() for folder in stale] == [False, True]
        assert cache.covers(IDS)
        tight.close()

    def test_what_others_left_goes_when_the_disk_needs_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = TimeStepCaches(tmp_path, 1)
        stale = open_cache(old, run="before").folder
        old.close()

        def free_bytes(folder: Path) -> int:
            return 0 if stale.exists() else 1 << 30

        for module in (activation_cache, time_step_caches):
            monkeypatch.setattr(module, "disk_free_bytes", free_bytes)
        caches = TimeStepCaches(tmp_path, 1)
        assert open_cache(caches, run="now").covers(IDS)
        assert not stale.exists()
        caches.close()

    def test_what_a_living_process_uses_stays(self, tmp_path: Path) -> None:
        living = TimeStepCaches(tmp_path, 1)
        used = open_cache(living, run="living")
        caches = TimeStepCaches(tmp_path, 1, budget_bytes=folder_bytes(used.folder) + 100)
        cache = open_cache(caches, run="other")
        assert used.folder.exists()
        assert cache.covers(IDS)
        assert not is_unused(used.folder)
        living.close()
        assert is_unused(used.folder)
        caches.close()

    def test_nothing_else_in_the_directory_is_touched(self, tmp_path: Path) -> None:
        mine = tmp_path / "activations-of-mine"
        mine.mkdir()
        (mine / "notes").write_text("x" * 5000)
        caches = TimeStepCaches(tmp_path, 1, budget_bytes=3000)
        open_cache(caches)
        caches.discard()
        assert list(tmp_path.iterdir()) == [mine]

    def test_a_plan_that_is_too_large_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = TimeStepCaches(tmp_path, 1)
        open_cache(old, run="left over")
        removable = folder_bytes(old._folders()[0])
        old.close()
        monkeypatch.setattr(activation_cache, "disk_free_bytes", lambda folder: 1000)
        caches = TimeStepCaches(tmp_path, 1)
        caches.refuse_without_space(1000 + removable)
        with pytest.raises(ValueError, match=r"stackwise\.cache_exceeds_free_space"):
            caches.refuse_without_space(1001 + removable)
        TimeStepCaches(tmp_path, 1, budget_bytes=900).refuse_without_space(10**9)
        living = TimeStepCaches(tmp_path, 1)
        open_cache(living, run="left over")  # is in use now
        caches.refuse_without_space(1000)
        with pytest.raises(ValueError, match=r"stackwise\.cache_exceeds_free_space"):
            caches.refuse_without_space(1001)
        living.close()


def test_a_removal_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    left = tmp_path / f".removed-activations-{'0' * 32}-01234567"
    left.mkdir(parents=True)
    (left / "00000000.page").write_bytes(b"x")
    caches = TimeStepCaches(tmp_path, 1)
    open_cache(caches)
    assert not left.exists()
    caches.close()


def test_two_ranks_share_and_the_last_one_removes(tmp_path: Path) -> None:
    ranks = [TimeStepCaches(tmp_path, 1, num_time_steps=2) for _ in range(2)]
    trunk = Trunk()
    for rank in ranks:
        open_cache(rank, 0, compute=trunk)
    assert trunk.num_calls == len(PAGES)
    open_cache(ranks[0], 1, compute=trunk)
    assert on_disk(tmp_path) == [(0, 1), (1, 1)]  # the other still reads it
    open_cache(ranks[1], 1, compute=trunk)
    assert on_disk(tmp_path) == [(1, 1)]
    assert trunk.num_calls == 2 * len(PAGES)
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("lacking", ["time_step", "unit", "trunk_hash"])
def test_a_key_that_lacks_something_is_refused(tmp_path: Path, lacking: str) -> None:
    """A cache that does not know its trunk would be believed when the trunk has changed."""
    given = {name: value for name, value in key().items() if name != lacking}
    with pytest.raises(ValueError, match=lacking):
        TimeStepCaches(tmp_path, 1).open(given, PAGES, TRUNK, hidden_size=HIDDEN)


def test_sizes_without_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"stackwise\.empty_time_step_caches"):
        TimeStepCaches(tmp_path, 0)


def test_another_cache_can_be_added(tmp_path: Path) -> None:
    made_before = MemoryCache.made
    with CACHES.registered("memory", MemoryCache):
        caches = TimeStepCaches(tmp_path / "none", 1, num_time_steps=2, cache="memory")
        with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=memory\)"):
            TimeStepCaches(tmp_path, 1, cache="memroy")
    found: list[Cache] = [
        caches.open(key(time_step), PAGES, TRUNK, hidden_size=HIDDEN) for time_step in range(2)
    ]
    assert found[0].read(IDS) is None
    assert found[1].read(IDS) is not None
    assert MemoryCache.made == made_before + 2
    assert not os.path.lexists(tmp_path / "none")
