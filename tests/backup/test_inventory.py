"""Lists of checkpoints and their verification, by what each of several stores holds."""

from pathlib import Path

import pytest

from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format.manifest import COPIED_APART
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.inventory import (
    HERE,
    BackupEntry,
    VerifiedVersion,
    list_entries,
    runs_at,
    verify_all,
)
from tests.backup.memory_place import save


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


def test_each_checkpoint_is_listed_once_with_its_facts_and_its_places(
    tmp_path: Path, here: Store
) -> None:
    there = Store(tmp_path / "there")
    both = save(here, 1, kind="manual", healthy=False, score=0.5)
    (there.root / "versions").mkdir(parents=True)
    there.manifest_path(both).write_bytes(here.manifest_path(both).read_bytes())
    local, remote = save(here, 2), save(there, 3, kind="emergency")
    lost = save(here, 4)
    here.manifest_path(lost).write_bytes(b"?")
    packs = {name: store.read(name).packs for store, name in ((here, both), (there, remote))}
    sizes = {name: sum(one.size_bytes for one in each) for name, each in packs.items()}
    assert len(packs[both]) == 3

    def entry(name: str, store: Store, *places: str) -> BackupEntry:
        found = store.read(name)
        facts = found.step, found.kind, found.created, found.healthy, found.score
        return BackupEntry(name, places, *facts, size_bytes=sizes.get(name, sizes[both]))

    expected = [
        BackupEntry(lost, (HERE,), problem="backup.manifest_changed()"),
        *sorted(
            (
                entry(remote, there, "url"),
                entry(local, here, HERE),
                entry(both, here, HERE, "url"),
            ),
            key=lambda one: one.name,
            reverse=True,
        ),
    ]
    assert list_entries({HERE: here, "url": there}) == expected
    assert [(one.step, one.kind, one.healthy, one.score) for one in expected if one.step == 1] == [
        (1, "manual", False, 0.5)
    ]
    here.manifest_path(both).write_bytes(b"?")  # the other place has it, too
    assert list_entries({HERE: here, "url": there}) == expected


def test_each_damage_is_found_with_its_step_where_that_is_known(here: Store) -> None:
    names = [save(here, step) for step in (1, 2, 3)]
    manifest = here.read(names[1])
    pack = manifest.packs[manifest.tensors["model/w"].pack].hash
    here.objects.path_of(pack).unlink()
    here.manifest_path(names[2]).write_bytes(b"?")
    problem = "problem=backup.object_is_missing()"
    shown: list[tuple[int, int]] = []
    found = verify_all("url", Store(here.root), show_progress=lambda *sizes: shown.append(sizes))
    sizes = [pack.size_bytes for name in names[:2] for pack in here.read(name).packs]
    assert {total for _, total in shown} == {sum(sizes)}
    done = [size for size, _ in shown]
    assert (len(done), done, done[-1]) == (len(sizes), sorted({*done}), sum(sizes))
    assert found == [
        VerifiedVersion("url", names[2], None, "backup.manifest_changed()"),
        VerifiedVersion("url", names[1], 2, f"backup.object_problem(hash={pack[:12]}, {problem})"),
        VerifiedVersion("url", names[0], 1, None),
    ]


def test_what_other_machines_copied_is_missed_at_the_destination_alone(here: Store) -> None:
    tensors = {f"model/{name}": TensorBytes("U8", (9,), name.encode() * 9) for name in "ab"}
    placed = here.place({**tensors, "optimizer/c": TensorBytes("U8", (9,), b"c" * 9)})
    apart, kept = placed.packs
    here.publish(placed, {COPIED_APART: [apart.hash]}, step=7)
    here.objects.path_of(apart.hash).unlink()
    for where, is_missed in ((HERE, False), ("url", True)):
        (found,) = verify_all(where, Store(here.root))
        assert (found.step, apart.hash[:12] in str(found.problem)) == (7, is_missed)
        assert (found.problem is None) is not is_missed
    here.objects.path_of(kept.hash).unlink()
    (found,) = verify_all(HERE, Store(here.root))
    assert kept.hash[:12] in str(found.problem)


def test_runs_are_the_folders_with_a_checkpoint(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "place")
    assert runs_at(place) == []
    for run in ("run-b", "run-a"):
        save(Store(Path(run), place), 1)
    (tmp_path / "place/empty/versions").mkdir(parents=True)
    (tmp_path / "place/note.txt").touch()
    assert runs_at(place) == ["run-a", "run-b"]
