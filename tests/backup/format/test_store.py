"""Versions on a real disk."""

import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infrastructure.backup.format import store as store_module
from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.lineage import Lineage
from infrastructure.backup.format.manifest import Pack, StoredTensor
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import (
    Placed,
    Store,
    _living_bytes,
    groups_of,
    is_mostly_dead,
)
from infrastructure.core.errors import CheckpointError, StorageError
from tests.faults.memory_files import MemoryFiles
from tests.faults.store_history import next_save_works, step_that_loads, tensors_at

FORMAT_PAGE = Path(store_module.__file__).parents[1] / "FORMAT.md"


def commit(store: Store, *steps: int) -> list[str]:
    return [store.commit(tensors_at(step), {"step": step}, step=step) for step in steps]


def object_files(root: Path) -> set[str]:
    return {path.name for path in (root / "objects").rglob("*") if path.is_file()}


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    commit(Store(tmp_path / "deep" / "store"), 1, 2, 3)
    assert step_that_loads(FileOperations(), tmp_path / "deep" / "store") == 3


def test_the_newest_comes_first_and_names_its_parent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.versions() == []
    assert store.newest() == (None, [])
    names = commit(store, 5, 6)
    assert store.versions() == names[::-1]
    assert store.read(names[1]).parent == names[0]
    assert [store.read(name).sequence for name in names] == [1, 2]


def test_what_did_not_change_is_stored_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit(store, 1)
    before = object_files(tmp_path)
    commit(store, 1)
    assert object_files(tmp_path) == before
    changed = tensors_at(1)
    changed["model/layer1"] = TensorBytes("F32", (2, 4), bytes(32))
    name = store.commit(changed, {}, step=2)
    (new,) = object_files(tmp_path) - before
    assert (tmp_path / "objects" / new[:2] / new).stat().st_size < 200
    assert bytes(dict(store.load(store.read(name)))["model/layer1"].data) == bytes(32)


def test_two_tensors_of_the_same_bytes_stay_two(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = {"model/a": TensorBytes("F32", (2,), bytes(8))}
    store.commit(first, {}, step=1)
    name = store.commit({"model/a": TensorBytes("I64", (), bytes(8))}, {}, step=2)
    assert dict(store.load(store.read(name)))["model/a"].dtype == "I64"


def test_removing_leaves_what_the_others_need(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = commit(store, 1, 2, 3)
    assert store.remove_all_but([names[2]]) == [names[1], names[0]]
    named = {pack.hash for pack in store.read(names[2]).packs}
    assert object_files(tmp_path) == named
    assert step_that_loads(FileOperations(), tmp_path) == 3
    assert next_save_works(FileOperations(), tmp_path)


def test_the_names_are_gone_from_the_disk_before_what_they_name() -> None:
    memory = MemoryFiles()
    store = Store(Path("store"), memory)
    names = commit(store, 1, 2)
    memory.log.clear()
    store.remove_all_but(names[1:])
    done = [(what, path.parts[1]) for what, path, *_ in memory.log]
    assert done[:2] == [("remove", "versions"), ("sync_directory", "versions")]
    assert ("remove", "objects") in done


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.sweep()
    commit(store, 1)
    (tmp_path / "tmp" / "half").write_bytes(b"x")
    store.sweep()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    commit(Store(tmp_path / "store"), 1)
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


class Full(FileOperations):
    """A disk on which nothing is left but what always stays free."""

    def free_bytes(self, directory: Path) -> int:
        return 64 * 1024**2


def test_what_has_no_space_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"backup\.no_space_for_checkpoint"):
        commit(Store(tmp_path, Full()), 1)
    assert object_files(tmp_path) == set()


def test_a_large_version_is_read_by_two_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(Store(tmp_path), 1)
    monkeypatch.setattr(store_module, "PACK_BYTES", 0)
    assert step_that_loads(FileOperations(), tmp_path) == 1


def test_other_files_in_its_folders_are_no_versions(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (name,) = commit(store, 1)
    for other in ("desktop.ini", f"{name} (1).json", "latest.json", f"{name}.json.part"):
        (tmp_path / "versions" / other).write_text("{}")
    assert store.versions() == [name]


def test_a_version_that_is_not_there(tmp_path: Path) -> None:
    (name,) = commit(Store(tmp_path), 1)
    problem = r"backup\.not_a_checkpoint_name\(name=\.\./\.\./etc/passwd\)"
    with pytest.raises(CheckpointError, match=problem):
        Store(tmp_path).read("../../etc/passwd")
    with pytest.raises(CheckpointError, match=r"backup\.store_file_missing"):
        Store(tmp_path).read(name[:-1] + ("0" if name[-1] != "0" else "1"))


def test_an_outline_is_read_again_and_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    [name] = commit(store, 7)
    outline = store.outline(name)
    assert outline == store.read(name).outline
    assert (outline.step, outline.healthy, outline.packs) == (7, True, store.read(name).packs)
    monkeypatch.setattr(store_module, "parse_manifest", None)
    assert store.outline(name) is outline
    path = store.manifest_path(name)
    path.write_bytes(path.read_bytes().replace(b'"step":7', b'"step":8'))
    with pytest.raises(CheckpointError, match=r"backup\.manifest_changed"):
        store.outline(name)
    store.remove_all_but(())
    with pytest.raises(CheckpointError):
        store.outline(name)


def test_a_hash_of_another_time_is_named(tmp_path: Path) -> None:
    (name,) = commit(Store(tmp_path), 1)
    path = Store(tmp_path).manifest_path(name)
    path.rename(path.with_name(path.name.replace("blake3", "sha3")))
    found, (rejected,) = Store(tmp_path).newest()
    assert found is None
    assert "backup.unknown_hash(hash_name=sha3)" in rejected.reason


def test_without_blake3_it_is_sha256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "available_hash", lambda: "sha256")
    (old,) = commit(Store(tmp_path), 1)
    assert "-sha256-" in old
    monkeypatch.undo()
    (new,) = commit(Store(tmp_path), 2)
    assert "-blake3-" in new
    assert step_that_loads(FileOperations(), tmp_path) == 2
    Store(tmp_path).remove_all_but([old])
    assert step_that_loads(FileOperations(), tmp_path) == 1


def test_a_pack_holds_one_class() -> None:
    groups = list(groups_of(tensors_at(1)))
    assert [{name.partition("/")[0] for name in group} for group in groups] == [
        {"frozen"},
        {"model"},
        {"optimizer"},
        {"small"},
    ]


@pytest.mark.parametrize("compress", [False, True])
def test_the_page_on_the_format_restores(tmp_path: Path, compress: bool) -> None:
    """What stands there for a person with plain Python works as it stands."""
    store = Store(tmp_path, compress=compress)
    commit(store, 1)
    large = TensorBytes("F32", (512, 512), bytes(1024**2))
    store.commit({**tensors_at(2), "model/large": large}, {}, step=2)
    assert compress == any(name.endswith(".zst") for name in object_files(tmp_path))
    (script,) = re.findall(r"```python\n(.*?)```", FORMAT_PAGE.read_text(), flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 9 tensors\n"


def test_a_pack_that_is_mostly_dead_is_not_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each version could keep old packs for one small tensor in them."""
    monkeypatch.setattr(store_module, "SMALL_PACK_BYTES", 0)
    tensors = {f"model/{i}": TensorBytes("U8", (1000,), bytes([i]) * 1000) for i in range(5)}
    store = Store(tmp_path)
    first = store.read(store.commit(tensors, {}, step=1))
    for number, is_named in ((0, True), (1, True), (2, False)):
        tensors[f"model/{number}"] = TensorBytes("U8", (1000,), bytes([99]) * 1000)
        latest = store.read(store.commit(tensors, {}, step=2))
        assert (first.packs[0] in latest.packs) == is_named
    found = {name: bytes(tensor.data) for name, tensor in store.load(latest)}
    assert found == {name: bytes(tensor.data) for name, tensor in tensors.items()}


def test_what_somebody_else_put_into_a_store_stays_and_stops_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = commit(store, 1, 2)
    folder = next((tmp_path / "objects").iterdir())
    strangers = [tmp_path / "objects" / "optimizer.pt", folder / "notes.txt", tmp_path / "x"]
    for path in strangers:
        path.write_text("not ours")
    assert store.remove_all_but(names[1:]) == names[:1]
    assert all(path.exists() for path in strangers)
    assert step_that_loads(FileOperations(), tmp_path) == 2


def test_the_living_bytes_of_a_pack_are_those_of_its_tensors_that_are_still_the_same(
    tmp_path: Path,
) -> None:
    tensors = {f"model/{i}": TensorBytes("U8", (7 + i,), bytes(7 + i)) for i in range(3)}
    store = Store(tmp_path)
    (pack,) = store.read(store.commit(tensors, {}, step=1)).packs
    assert _living_bytes({"model/0": pack, "model/2": pack}, tensors) == {pack: 7 + 9}


def test_only_requested_tensors_of_a_version_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (name,) = commit(store, 1)
    manifest, everything = store.read(name), {*tensors_at(1)}
    assert {*dict(store.load(manifest))} == everything
    models = {name for name in everything if name.startswith("model/")}
    assert {*dict(store.load(manifest, only="model"))} == models
    assert {*dict(store.load(manifest, without="model"))} == everything - models
    some = {"model/layer1", *(everything - models)}
    assert {*dict(store.load(manifest, names=some))} == some
    assert {*dict(store.load(manifest, names=some, only="model"))} == {"model/layer1"}
    assert dict(store.load(manifest, names=())) == {}
    for pack in manifest.packs:  # what is not asked for may be damaged
        if pack != manifest.packs[manifest.tensors["model/layer1"].pack]:
            store.objects.path_of(pack.hash).write_bytes(b"damaged")
    assert {*dict(Store(tmp_path).load(manifest, only="model"))} == models
    with pytest.raises(CheckpointError):
        list(Store(tmp_path).load(manifest))


def test_a_new_version_comes_after_all_that_are_known(tmp_path: Path) -> None:
    """Also after those of the place, which a store that was restored may lack."""
    store = Store(tmp_path)
    (name,) = commit(store, 1)
    Lineage(tmp_path).add([f"{41:012d}{name[12:]}"])
    assert [store.read(name).sequence for name in commit(store, 2, 3)] == [42, 43]


def test_a_resume_may_choose_the_newest_healthy_version_whose_manifest_can_be_read(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    assert store.newest_healthy() is None
    names = commit(store, 1, 2, 3)
    store.commit(tensors_at(4), {}, step=4, healthy=False)
    assert store.newest_healthy() == names[2]
    assert store.newest() == (names[2], [])
    store.manifest_path(names[2]).write_bytes(b"?")
    assert Store(tmp_path).newest_healthy() == names[1]
    found, rejected = Store(tmp_path).newest()
    assert (found, [one.name for one in rejected]) == (names[1], [names[2]])


def test_the_facts_of_a_commit_stand_in_its_manifest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = store.commit(
        tensors_at(1), {"a": [1]}, step=9, kind="emergency", healthy=False, score=0.5
    )
    manifest = store.read(name)
    facts = (manifest.step, manifest.kind, manifest.healthy, manifest.score, manifest.values)
    assert facts == (9, "emergency", False, 0.5, {"a": [1]})
    assert manifest.created_at() == pytest.approx(time.time(), abs=100)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", manifest.created)
    plain = store.read(store.commit(tensors_at(1), {}, step=10))
    assert (plain.kind, plain.healthy, plain.score) == ("scheduled", True, None)


def test_no_object_is_removed_while_a_manifest_that_stays_cannot_be_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = commit(store, 1, 2, 3)
    before = object_files(tmp_path)
    data = store.manifest_path(names[2]).read_bytes()
    store.manifest_path(names[2]).write_bytes(b"?")
    assert store.remove_all_but(names[1:]) == [names[0]]
    assert object_files(tmp_path) == before
    store.manifest_path(names[2]).write_bytes(data)
    assert store.remove_all_but(names[1:]) == []
    named = {pack.hash for name in names[1:] for pack in store.read(name).packs}
    assert object_files(tmp_path) == named < before


def test_a_tensor_that_its_object_lacks_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    placed = store.place({"model/a": TensorBytes("U8", (1,), b"a")})
    (pack,) = placed.packs
    tensors = {**placed.tensors, "model/b": StoredTensor(0, "0" * 64)}
    name = store.publish(Placed(placed.packs, tensors), {}, step=1)
    problem = rf"^backup\.object_lacks_tensor\(hash={pack.hash[:12]}, name=model/b\)$"
    with pytest.raises(CheckpointError, match=problem):
        list(store.load(store.read(name)))


class Refusing(FileOperations):
    """Refuses to name a file."""

    def rename(self, source: Path, target: Path) -> None:
        raise OSError("not here")


def test_what_the_disk_refuses_is_named_with_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path, Refusing())
    problem = rf"^backup\.checkpoint_not_written\(root={tmp_path}, error=not here\)$"
    with pytest.raises(StorageError, match=problem):
        commit(store, 1)
    placed = Store(tmp_path).place(tensors_at(1))
    with pytest.raises(StorageError, match=problem):
        store.publish(placed, {}, step=1)
    assert store.versions() == []
    assert [*(tmp_path / "tmp").rglob("*")] == [], "half a file is no use"


def test_the_folders_of_a_store_are_on_the_disk_once_before_its_first_file() -> None:
    memory = MemoryFiles()
    store = Store(Path("runs/store"), memory)
    store.prepare()
    synced = [("sync_directory", Path("runs/store")), ("sync_directory", Path("runs"))]
    assert memory.log == synced
    store.prepare()
    assert memory.log == synced


def test_room_is_needed_for_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, needed = Store(tmp_path), list[int]()
    monkeypatch.setattr(store.objects, "require_space", needed.append)
    commit(store, 1, 2)
    frozen = len(tensors_at(1)["frozen/base"].data)
    whole = sum(len(tensor.data) for tensor in tensors_at(1).values())
    assert needed == [whole, whole - frozen]


@pytest.mark.parametrize(
    ("size_bytes", "living_bytes", "is_dead"),
    [
        (1024**2, 0, False),
        (1024**2 + 1, 0, True),
        (4 * 1024**2, 2 * 1024**2, False),
        (4 * 1024**2, 2 * 1024**2 - 1, True),
    ],
)
def test_a_large_pack_is_given_up_when_less_than_half_of_it_lives(
    size_bytes: int, living_bytes: int, is_dead: bool
) -> None:
    assert is_mostly_dead(Pack("0" * 64, size_bytes), living_bytes) is is_dead
