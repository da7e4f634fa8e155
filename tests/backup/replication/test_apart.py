"""Objects that other machines copy to the place themselves; the manifest comes after them."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from infrastructure.backup.format.manifest import COPIED_APART
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Placed, Store
from infrastructure.backup.inventory import HERE, verify_all
from infrastructure.backup.repair.run_repair import Outcome, StoreRepair
from infrastructure.backup.replication import apart
from infrastructure.backup.replication.apart import ApartSettings, place_apart
from infrastructure.backup.replication.download import fetch_newest
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.replication.upload import Upload
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.messages import phrase
from tests.backup.memory_place import RUN, MemoryPlace

OWN = {"model/a@0": TensorBytes("U8", (4,), b"own!")}
OTHERS = {
    "model/a@4": TensorBytes("U8", (5,), b"other"),
    "optimizer/a@4": TensorBytes("U8", (6,), b"others"),
}
FIRST_CALLS = 2


def commit_with_parts(store: Store, link: RemoteSession) -> str:
    """A version of which another machine has copied a part already."""
    ours, theirs = store.place(OWN), place_apart(link, OTHERS, store.hash_name, Mock())
    moved = {
        name: type(stored)(stored.pack + len(ours.packs), stored.hash)
        for name, stored in theirs.tensors.items()
    }
    placed = Placed((*ours.packs, *theirs.packs), {**ours.tensors, **moved})
    return store.publish(placed, {COPIED_APART: [p.hash for p in theirs.packs]}, step=1)


@pytest.fixture
def place() -> MemoryPlace:
    return MemoryPlace()


@pytest.fixture
def link(place: MemoryPlace) -> RemoteSession:
    return RemoteSession(place, RUN, clock=iter(range(10**6)).__next__)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


def copied(store: Store, name: str, place: MemoryPlace) -> Upload:
    """The version, copied by its writer's machine."""
    link = RemoteSession(place, RUN, clock=iter(range(10**6)).__next__)
    one = Upload(store, name, link, before_manifest=do_nothing, on_piece=do_nothing)
    with closing(one):
        for _ in one.steps():
            pass
    return one


def test_a_version_is_whole_at_the_place_though_no_machine_has_all_of_it(
    store: Store, link: RemoteSession, place: MemoryPlace, tmp_path: Path
) -> None:
    name = commit_with_parts(store, link)
    assert len(place.written) == 2  # the parts of the other machine, before there is a version
    assert copied(store, name, place).is_confirmed
    assert place.written[-1].name == f"{name}.json"
    assert len(place.written) == 4
    elsewhere = Store(tmp_path / "elsewhere")
    assert fetch_newest(link, elsewhere, None, do_nothing) == name
    loaded = {key: bytes(t.data) for key, t in elsewhere.load(elsewhere.read(name))}
    assert loaded == {key: bytes(t.data) for key, t in {**OWN, **OTHERS}.items()}


def test_a_part_that_is_gone_there_keeps_the_manifest_away(
    store: Store, link: RemoteSession, place: MemoryPlace
) -> None:
    name = commit_with_parts(store, link)
    place.remove(place.written[0])
    with pytest.raises(CheckpointError, match=r"backup\.foreign_object_missing.*url=memory:here"):
        copied(store, name, place)
    assert not [path for path in place.written if path.parent.name == "versions"]


def test_what_this_machine_lost_of_its_own_is_no_part_of_another_one(
    store: Store, link: RemoteSession, place: MemoryPlace
) -> None:
    name = commit_with_parts(store, link)
    store.objects.path_of(store.read(name).packs[0].hash).unlink()
    with pytest.raises(CheckpointError, match=r"backup\.local_object_missing"):
        copied(store, name, place)
    (damaged,) = verify_all(HERE, store)
    assert damaged.problem is not None


def test_what_other_machines_wrote_is_no_damage_here_and_is_fetched_to_go_on(
    store: Store, link: RemoteSession, place: MemoryPlace
) -> None:
    name = commit_with_parts(store, link)
    assert [found.problem for found in verify_all(HERE, store)] == [None]
    reason = store.newest()[1][0].reason
    assert "backup.object_only_at_destination" in reason
    (done,) = StoreRepair(store, link.store, place.url).steps()
    assert done.outcome is Outcome.REPAIRED
    assert done.text == phrase("backup.checkpoint_parts_fetched", step=1, where=place.url)
    store.verify(store.read(name))
    assert [*StoreRepair(store, link.store, place.url).steps()] == []


def test_parts_that_are_lost_are_named(store: Store, link: RemoteSession) -> None:
    commit_with_parts(store, link)
    (lost,) = StoreRepair(store, None).steps()
    assert lost.outcome is Outcome.LOST
    assert "backup.checkpoint_parts_unavailable" in lost.text


@pytest.mark.parametrize("num_faults", [FIRST_CALLS, 10**6])
def test_a_place_that_does_not_answer_is_tried_again_a_few_times(
    link: RemoteSession, place: MemoryPlace, num_faults: int
) -> None:
    faults = iter(range(num_faults))

    def fail(operation: str, _: Path) -> None:
        if operation == "write" and next(faults, None) is not None:
            raise OSError("it does not answer")

    place.fault = fail
    if num_faults == FIRST_CALLS:
        assert len(place_apart(link, OTHERS, "sha256", Mock()).packs) == 2
        return
    with pytest.raises(StorageError, match=r"backup\.upload_not_confirmed.*url=memory:here"):
        place_apart(link, OTHERS, "sha256", Mock())


def test_what_is_never_confirmed_is_refused(link: RemoteSession, place: MemoryPlace) -> None:
    place.is_safe = lambda path: False
    with pytest.raises(StorageError, match=r"backup\.nothing_confirmed_for_long"):
        place_apart(link, OTHERS, "sha256", Mock())


@pytest.fixture
def backup(tmp_path: Path) -> Iterator[RunBackup]:
    (tmp_path / "place").mkdir()
    options = BackupConfig(place=str(tmp_path / "place"))
    with RunBackup(tmp_path / "run/checkpoints", options, run_id="run") as backup:
        yield backup


def test_another_machine_writes_to_the_same_place_alone(backup: RunBackup, tmp_path: Path) -> None:
    assert backup.apart() is None  # nobody knows which place it is
    assert backup.check_place() is None
    settings = backup.apart()
    assert settings is not None
    link = ApartSettings.from_json(settings.to_json()).link()
    place_apart(link, OTHERS, settings.hash_name)
    assert len([*(tmp_path / "place/run/objects").glob("*/*")]) == 2
    shutil.rmtree(tmp_path / "place")
    (tmp_path / "place").mkdir()  # such as where nothing is mounted
    with pytest.raises(OSError, match=r"backup\.folder_without_marker"):
        settings.link()


def test_objects_of_versions_there_are_never_written_over(
    backup: RunBackup, tmp_path: Path
) -> None:
    backup.check_place()
    settings = backup.apart()
    assert settings is not None
    store = Store(Path("run"), settings.link().place)
    store.publish(store.place(OWN), {}, step=1)
    assert settings.link().named == {p.hash for p in store.read(store.versions()[0]).packs}


def test_no_place_no_parts(tmp_path: Path) -> None:
    assert RunBackup(tmp_path).apart() is None
    assert apart.NUM_ATTEMPTS > FIRST_CALLS
