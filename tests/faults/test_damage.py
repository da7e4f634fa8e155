"""G4: whatever changes in what was saved is found and named, and the version before serves."""

import random
from pathlib import Path

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from tests.faults.memory_files import Files, MemoryFiles
from tests.faults.store_history import ROOT, step_that_loads, tensors_at

NUM_OBJECT_BITS = 1000


@pytest.fixture
def files() -> Files:
    """The bytes of a store with two versions, for a test to change."""
    memory = MemoryFiles()
    store = Store(ROOT, memory)
    for step in (1, 2):
        store.commit(tensors_at(step), {"step": step}, step=step)
    return memory.files


@pytest.fixture
def store(files: Files) -> Store:
    operations = MemoryFiles()
    operations.files = files
    return Store(ROOT, operations)


def flip(files: Files, path: Path, bit: int) -> None:
    data = bytearray(files[path])
    data[bit // 8] ^= 1 << bit % 8
    files[path] = bytes(data)


def own_objects(store: Store, name: str) -> list[Path]:
    """The objects that only this version names."""
    others = {p.hash for n in store.versions() if n != name for p in store.read(n).packs}
    packs = store.read(name).packs
    return [store.objects.path_of(pack.hash) for pack in packs if pack.hash not in others]


def assert_older_serves(store: Store, damaged: str) -> str:
    """The reason that is given for passing over the newest version."""
    fresh = Store(ROOT, store.operations)
    name, (rejected,) = fresh.newest()
    assert rejected.name == damaged
    assert name == store.versions()[1]
    return rejected.reason


def test_every_bit_of_a_manifest(store: Store, files: Files) -> None:
    newest = store.versions()[0]
    path = store.manifest_path(newest)
    for bit in range(8 * len(files[path])):
        flip(files, path, bit)
        with pytest.raises(CheckpointError, match=r"backup\.manifest_changed"):
            store.read(newest)
        flip(files, path, bit)
    flip(files, path, 77)
    assert "manifest" in assert_older_serves(store, newest)


def test_random_bits_of_objects(store: Store, files: Files) -> None:
    newest = store.versions()[0]
    manifest = store.read(newest)
    objects = own_objects(store, newest)
    draw = random.Random(0)
    for _ in range(NUM_OBJECT_BITS):
        path = draw.choice(objects)
        bit = draw.randrange(8 * len(files[path]))
        flip(files, path, bit)
        with pytest.raises(CheckpointError, match=r"backup\.object_bytes_changed"):
            store.verify(manifest)
        with pytest.raises(CheckpointError, match=r"backup\.object_bytes_changed"):
            dict(store.load(manifest))
        flip(files, path, bit)
    store.verify(manifest)


@pytest.mark.parametrize("damage", ["zeroed", "cut", "grown", "gone", "swapped", "empty"])
def test_other_damage(store: Store, files: Files, damage: str) -> None:
    newest = store.versions()[0]
    first, second, *_ = own_objects(store, newest)
    data = files[first]
    match damage:
        case "zeroed":
            files[first] = bytes(len(data))
        case "cut":
            files[first] = data[:-1]
        case "grown":
            files[first] = data + b"\0"
        case "gone":
            del files[first]
        case "swapped":
            files[first] = files[second]
            files[second] = data
        case "empty":
            files[first] = b""
    assert first.name[:12] in assert_older_serves(store, newest)
    assert step_that_loads(store.operations) == 1


def test_a_damaged_object_is_written_again_and_not_named_again(store: Store, files: Files) -> None:
    """The frozen tensors never change: a later version would lean on the damaged bytes."""
    frozen = next(
        store.objects.path_of(store.read(store.versions()[0]).packs[place.pack].hash)
        for tensor, place in store.read(store.versions()[0]).tensors.items()
        if tensor.startswith("frozen/")
    )
    flip(files, frozen, 999)
    later = Store(ROOT, store.operations)
    assert step_that_loads(later.operations) == 0
    later.commit(tensors_at(3), {"step": 3}, step=3)
    assert step_that_loads(later.operations) == 3


def test_an_unhealthy_version_is_evidence_only(store: Store, files: Files) -> None:
    store.commit(tensors_at(3), {"step": 3}, step=3, kind="emergency", healthy=False)
    assert len(store.versions()) == 3
    assert step_that_loads(store.operations) == 2


def test_objects_stay_while_a_kept_manifest_cannot_be_read(store: Store, files: Files) -> None:
    newest, older = store.versions()
    intact = files[store.manifest_path(older)]
    flip(files, store.manifest_path(older), 5)
    store.remove_all_but([newest, older])
    files[store.manifest_path(older)] = intact
    Store(ROOT, store.operations).verify(store.read(older))
