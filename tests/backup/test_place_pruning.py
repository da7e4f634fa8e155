"""A pruning by hand removes what is replaced, and objects not before the second one."""

import time
from pathlib import Path

import pytest

from infrastructure.backup.link import Link
from infrastructure.backup.place_pruning import prune_once
from infrastructure.backup.retention import Retention
from tests.backup.memory_place import RUN, MemoryPlace, save
from tests.faults.drive_model import Clock

RETENTION = Retention(keep_last=2)


@pytest.fixture
def link() -> Link:
    return Link(MemoryPlace(), RUN, clock=Clock())


def test_old_versions_go_and_their_objects_with_a_call_an_hour_later(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [save(link.store, step) for step in range(1, 5)]
    record = tmp_path / "unnamed.json"
    told = prune_once(link, RETENTION, record)
    assert told[0] == "2 versions removed at memory:here"
    assert "2 objects there have no name" in told[1]
    assert prune_once(link, RETENTION, record)[1] == told[1]
    place = link.place
    assert isinstance(place, MemoryPlace)
    assert not [path for path in place.removed if "objects" in path.parts]
    later = time.time() + 3601
    monkeypatch.setattr("infrastructure.backup.place_pruning.time.time", lambda: later)
    assert prune_once(link, RETENTION, record)[1] == "2 objects without a name removed there"
    assert link.store.versions() == names[:-3:-1]
    for name in link.store.versions():
        link.store.verify(link.store.read(name))


def test_nothing_goes_that_is_not_replaced_by_whole_ones(link: Link, tmp_path: Path) -> None:
    names = [save(link.store, step) for step in range(1, 4)]
    place = link.place
    assert isinstance(place, MemoryPlace)
    for name in names[1:]:
        manifest = link.store.read(name)
        pack = manifest.packs[manifest.tensors["model/w"].pack].hash
        place.files.files[link.store.objects.path_of(pack)] = b"damaged"
    prune_once(link, RETENTION, tmp_path / "unnamed.json")
    assert link.store.versions() == names[::-1]


def test_a_place_that_confirms_nothing_loses_nothing(link: Link, tmp_path: Path) -> None:
    names = [save(link.store, step) for step in range(1, 5)]
    place = link.place
    assert isinstance(place, MemoryPlace)
    place.is_safe = lambda path: False
    prune_once(link, RETENTION, tmp_path / "unnamed.json")
    assert link.store.versions() == names[::-1]


def test_a_damaged_record_only_costs_an_hour(link: Link, tmp_path: Path) -> None:
    for step in range(1, 5):
        save(link.store, step)
    record = tmp_path / "unnamed.json"
    record.write_text('{"a": "long ago"}')
    assert "2 objects there have no name" in prune_once(link, RETENTION, record)[1]
