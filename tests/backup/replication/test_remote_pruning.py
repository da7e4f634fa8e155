"""A pruning by hand removes what is replaced, and objects not before the second one."""

import errno
import time
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.backends.base import Content
from infrastructure.backup.format.codec import SUFFIX, compress
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.replication.remote_pruning import PlacePruning, prune_once
from infrastructure.backup.replication.remote_session import RemoteSession, UploadedFile
from infrastructure.core.messages import phrase
from tests.backup.memory_place import RUN, MemoryPlace, save
from tests.faults.drive_model import Clock

RETENTION = Retention(keep_last=2)


@pytest.fixture
def link() -> RemoteSession:
    return RemoteSession(MemoryPlace(), RUN, clock=Clock())


def test_old_versions_go_and_their_objects_with_a_call_an_hour_later(
    link: RemoteSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [save(link.store, step) for step in range(1, 5)]
    record = tmp_path / "unnamed.json"
    pruned = prune_once(link, RETENTION, record)
    assert pruned[0] == phrase("backup.checkpoints_removed_there", count=2, url="memory:here")
    assert "backup.unreferenced_objects_remain(count=2)" in pruned[1]
    assert prune_once(link, RETENTION, record)[1] == pruned[1]
    place = link.place
    assert isinstance(place, MemoryPlace)
    assert not [path for path in place.removed if "objects" in path.parts]
    later = time.time() + 3601
    monkeypatch.setattr("infrastructure.backup.replication.remote_pruning.time.time", lambda: later)
    assert prune_once(link, RETENTION, record)[1] == "backup.unreferenced_objects_removed(count=2)"
    assert link.store.versions() == names[:-3:-1]
    for name in link.store.versions():
        link.store.verify(link.store.read(name))


def test_nothing_goes_that_is_not_replaced_by_whole_ones(
    link: RemoteSession, tmp_path: Path
) -> None:
    names = [save(link.store, step) for step in range(1, 4)]
    place = link.place
    assert isinstance(place, MemoryPlace)
    for name in names[1:]:
        manifest = link.store.read(name)
        pack = manifest.packs[manifest.tensors["model/w"].pack].hash
        place.files.files[link.store.objects.path_of(pack)] = b"damaged"
    prune_once(link, RETENTION, tmp_path / "unnamed.json")
    assert link.store.versions() == names[::-1]


def test_a_place_that_confirms_nothing_loses_nothing(link: RemoteSession, tmp_path: Path) -> None:
    names = [save(link.store, step) for step in range(1, 5)]
    place = link.place
    assert isinstance(place, MemoryPlace)
    place.is_safe = lambda path: False
    prune_once(link, RETENTION, tmp_path / "unnamed.json")
    assert link.store.versions() == names[::-1]


@pytest.mark.parametrize(
    "text", ['{"a": "long ago"}', '{"a": 1.0, "b": "long ago"}', "[1.0]", "7", "{", ""]
)
def test_a_damaged_record_only_costs_an_hour(
    link: RemoteSession, tmp_path: Path, text: str
) -> None:
    for step in range(1, 5):
        save(link.store, step)
    record = tmp_path / "unnamed.json"
    record.write_text(text)
    assert "backup.unreferenced_objects_remain(count=2)" in prune_once(link, RETENTION, record)[1]


def test_objects_may_lie_there_compressed_and_older_versions_are_not_read(
    link: RemoteSession, tmp_path: Path
) -> None:
    for step in range(1, 5):
        weights = TensorBytes("U8", (10_000,), bytes([step]) * 10_000)
        link.store.commit({"model/w": weights}, {}, step=step)
    first = link.store.versions()[-1]
    place = link.place
    assert isinstance(place, MemoryPlace)
    for path in [path for path in place.files.files if "objects" in path.parts]:
        packed = compress(place.files.files.pop(path))
        place.files.files[path.with_name(path.name + SUFFIX)] = packed
    read: list[str] = []
    place.fault = lambda what, path: read.append(path.name[:64]) if what == "read" else None
    (old,) = link.store.read(first).packs
    versions, objects = prune_once(link, RETENTION, tmp_path / "unnamed.json")
    assert versions == phrase("backup.checkpoints_removed_there", count=2, url="memory:here")
    assert objects.startswith(
        "backup.unreferenced_objects_remain(count=2)"
    )  # those that stay have theirs
    assert old.hash not in read


class Rig:
    """A place with versions that are confirmed, and the pruning of it in simulated time."""

    def __init__(self, **retention: Any) -> None:
        self.clock = Clock(10_000.0)
        self.place = MemoryPlace()
        self.link = RemoteSession(self.place, RUN, clock=self.clock)
        self.pruning = PlacePruning(self.link, Retention(**retention), 3600.0)

    def save(self, step: int, *, is_confirmed: bool = True, **facts: Any) -> str:
        name = save(self.link.store, step, **facts)
        if is_confirmed:
            self.pruning.confirmed[name] = self.link.store.read(name)
        return name

    def prune(self, *on_its_way: str, listed: list[str] | None = None) -> list[float]:
        versions = self.link.store.versions() if listed is None else listed
        return list(self.pruning.steps(versions, on_its_way))

    def damage(self, name: str) -> bytes:
        """Damage a manifest; gives what it was."""
        path = self.link.store.manifest_path(name)
        data = self.place.files.files[path]
        self.place.files.files[path] = b"?"
        return data

    def object_names(self) -> set[str]:
        return {path.name for path in self.place.files.files if "objects" in path.parts}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_version_that_cannot_be_read_stays_for_the_grace_and_all_objects_with_it(
    rig: Rig,
) -> None:
    """A mount may show a whole file as another for a while."""
    first = rig.save(1, is_confirmed=False)
    newer = [rig.save(step) for step in (2, 3, 4)]
    rig.damage(first)
    rig.prune()
    objects = rig.object_names()
    assert rig.link.store.versions() == [*newer[:-3:-1], first]
    rig.clock.now += 3599.0
    rig.prune()
    assert first in rig.link.store.versions()
    assert rig.object_names() == objects
    rig.clock.now += 1.0
    rig.prune()
    assert rig.link.store.versions() == newer[:-3:-1]
    assert rig.object_names() < objects


def test_one_that_can_be_read_again_is_as_any_other(rig: Rig) -> None:
    first = rig.save(1, is_confirmed=False)
    newer = [rig.save(step) for step in (2, 3)]
    data = rig.damage(first)
    rig.prune()
    rig.place.files.files[rig.link.store.manifest_path(first)] = data
    rig.clock.now += 60.0
    rig.prune()
    assert rig.link.store.versions() == newer[::-1]


def test_one_that_could_not_be_read_and_is_gone_stops_nothing(rig: Rig) -> None:
    first = rig.save(1, is_confirmed=False)
    for step in (2, 3):
        rig.save(step)
    rig.damage(first)
    rig.prune()
    assert rig.pruning.is_due()  # nothing is known of objects yet
    del rig.place.files.files[rig.link.store.manifest_path(first)]
    rig.prune()
    assert len(rig.pruning.unnamed_since) == 1
    assert not rig.pruning.is_due()


def test_of_the_emergency_versions_the_newest_stays(rig: Rig) -> None:
    kinds = ("emergency", "emergency", "scheduled", "scheduled", "scheduled")
    names = [rig.save(step, kind=kind) for step, kind in enumerate(kinds, start=1)]
    rig.prune()
    assert rig.link.store.versions() == [names[4], names[3], names[1]]


def test_what_has_no_name_is_looked_for_once_an_hour_and_goes_an_hour_later(rig: Rig) -> None:
    for step in (1, 2):
        rig.save(step)
    listed: list[Path] = []
    rig.place.fault = lambda what, path: listed.append(path) if what == "names" else None
    rig.prune()
    assert listed
    left = {"a" * 64, f"{'b' * 64}{SUFFIX}"}
    for name in left:
        rig.place.files.files[rig.link.store.root / "objects" / name[:2] / name] = b"left"
    listed.clear()
    rig.clock.now += 3599.0
    assert not rig.pruning.is_due()
    rig.prune(listed=[])
    assert listed == []
    rig.clock.now += 1.0
    assert rig.pruning.is_due()
    rig.prune(listed=[])
    assert listed
    rig.clock.now += 3599.0
    rig.prune()
    assert left <= rig.object_names()
    rig.clock.now += 1.0
    rig.prune("a" * 64)  # one is being copied by now
    assert left & rig.object_names() == {"a" * 64}


def test_an_old_one_goes_although_a_younger_one_is_noted_before_it(rig: Rig) -> None:
    for step in (1, 2):
        rig.save(step)
    rig.prune()
    young, old = "a" * 64, "b" * 64
    for name in (young, old):
        rig.place.files.files[rig.link.store.root / "objects" / name[:2] / name] = b"left"
    rig.pruning.unnamed_since |= {young: rig.clock.now, old: rig.clock.now - 3600.0}
    rig.prune()
    assert {young, old} & rig.object_names() == {young}


def test_of_an_object_that_goes_nothing_is_known_any_more(rig: Rig) -> None:
    """Whoever needs it again writes it anew."""
    manifest = rig.link.store.read(rig.save(1))
    for step in (2, 3, 5):
        rig.save(step)
    gone = manifest.packs[manifest.tensors["model/w"].pack].hash
    content = Content.of([b""])
    rig.link.sent[gone] = UploadedFile(Path("x"), content, 0.0)
    rig.link.named |= {pack.hash for pack in manifest.packs}
    rig.prune()
    assert gone in rig.link.sent
    rig.clock.now += 3600.0
    rig.prune()
    assert gone not in {*rig.link.sent, *rig.link.named, *rig.object_names()}
    assert len(rig.link.named) == len(manifest.packs) - 1


def test_between_two_steps_no_more_than_one_thing_is_removed_and_nobody_waits(rig: Rig) -> None:
    for step in range(1, 7):
        rig.save(step)
    removed: list[str] = []
    rig.place.fault = lambda what, path: removed.append(path.name) if what == "remove" else None
    for num_removed in (4, 4):  # versions, and an hour later their objects
        steps = 0
        for wait in rig.pruning.steps(rig.link.store.versions(), ()):
            assert wait == 0.0
            assert len({name[:64] for name in removed}) <= 1
            steps += len(removed) > 0
            removed.clear()
        assert steps == num_removed
        rig.clock.now += 3600.0


def test_removals_that_a_place_gathers_are_finished(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[set[str]] = []
    versions = rig.link.store.versions
    monkeypatch.setattr(rig.place, "close", lambda: finished.append({*versions()}))
    names = [rig.save(step) for step in (1, 2, 3)]
    rig.prune()
    assert finished == [{*names[1:]}]


def test_at_a_place_without_any_object_nothing_is_done(rig: Rig) -> None:
    def absent(operation: str, path: Path) -> None:
        if operation == "names":
            raise FileNotFoundError(errno.ENOENT, "No such directory")

    rig.place.fault = absent
    rig.prune(listed=[])
    assert rig.pruning.unnamed_since == {}
    assert rig.place.removed == []


def test_a_version_that_has_lost_a_file_is_no_reason_to_remove_an_older_one(rig: Rig) -> None:
    names = [rig.save(step) for step in (1, 2, 3, 4)]
    rig.pruning.doubted = {names[3]}
    rig.prune()
    assert rig.link.store.versions() == names[:0:-1]
    rig.pruning.doubted = ()
    rig.prune()
    assert rig.link.store.versions() == names[:1:-1]
    assert rig.pruning.confirmed.keys() == {*names[2:]}


def test_evidence_is_no_reason_to_remove_what_can_be_resumed(rig: Rig) -> None:
    names = [rig.save(step, healthy=step < 4) for step in (1, 2, 3, 4, 5)]
    rig.prune()
    assert rig.link.store.versions() == names[:0:-1]


def test_what_is_spared_stays_with_its_objects(rig: Rig) -> None:
    names = [rig.save(step) for step in (1, 2, 3, 4)]
    versions = rig.link.store.versions
    for _ in range(2):
        list(rig.pruning.steps(versions(), (), {names[0]}))
        assert versions() == [names[3], names[2], names[0]]
        rig.clock.now += 3601.0
    for name in versions():
        rig.link.store.verify(rig.link.store.read(name))


def test_the_best_stay_of_all_and_of_those_that_were_confirmed() -> None:
    """The best of all was copied by an earlier session, and may be gone for all that is known."""
    rig = Rig(keep_best=1)
    names = [rig.save(1, score=0.1, is_confirmed=False)]
    names += [
        rig.save(step, score=score) for step, score in enumerate((0.7, 0.5, 0.9, 0.8, 0.6), 2)
    ]
    rig.prune()
    assert rig.link.store.versions() == [names[5], names[4], names[2], names[0]]


def test_the_best_is_the_best_on_the_rows_of_the_newest_score() -> None:
    rig = Rig(keep_best=1)
    names = []
    for step, (score, rows) in enumerate(
        ((0.1, "old"), (0.5, "new"), (0.4, "new"), (0.9, "new"), (0.8, "new")), 1
    ):
        weights = {"model/w": TensorBytes("U8", (1,), bytes([step]))}
        name = rig.link.store.commit(weights, {"measured_on": rows}, step=step, score=score)
        rig.pruning.confirmed[name] = rig.link.store.read(name)
        names.append(name)
    rig.prune()
    assert rig.link.store.versions() == [names[4], names[3], names[2]]


def test_at_another_place_nothing_is_removed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [rig.save(step) for step in (1, 2, 3)]

    def refuse() -> None:
        raise OSError(errno.ENOTCONN, "not mounted")

    monkeypatch.setattr(rig.place, "require_identity", refuse)
    with pytest.raises(OSError, match="not mounted"):
        rig.prune()
    assert rig.link.store.versions() == names[::-1]


@pytest.mark.parametrize("folder", ["versions", "objects"])
def test_what_is_not_safe_at_the_place_replaces_nothing_in_a_pruning_by_hand(
    link: RemoteSession, tmp_path: Path, folder: str
) -> None:
    names = [save(link.store, step) for step in range(1, 5)]
    place = link.place
    assert isinstance(place, MemoryPlace)
    newest = {pack.hash for pack in link.store.read(names[3]).packs} | {names[3]}
    place.is_safe = lambda path: folder not in path.parts or path.stem not in newest
    prune_once(link, RETENTION, tmp_path / "unnamed.json")
    shared = 4 if folder == "objects" else 3  # all versions have an object in common
    assert len(link.store.versions()) == shared
