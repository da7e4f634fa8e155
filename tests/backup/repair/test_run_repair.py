"""What is damaged in a store comes back from the same versions elsewhere, object by object."""

import shutil
from pathlib import Path

import pytest

from infrastructure.backup.format.manifest import Pack
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.repair.run_repair import Outcome, Repair, StoreRepair
from infrastructure.backup.replication.status import BackupStatus, write_status
from infrastructure.backup.run_backup import STATUS_FILE, RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import CheckpointError
from tests.faults.store_history import tensors_at


def state_at(step: int) -> dict[str, TensorBytes]:
    """A training's state with a random state and run files that hardly ever change."""
    return {
        **tensors_at(step),
        "random/python": TensorBytes("U8", (4,), b"rand"),
        "random/step": TensorBytes("U8", (1,), bytes([step])),
        "files/run.json@000000000": TensorBytes("U8", (2,), b"{}"),
        "files/tokenizer/tokenizer.json@000000000": TensorBytes("U8", (4,), b"toks"),
        "files/metrics.jsonl@000000000": TensorBytes("U8", (step,), b"x" * step),
    }


@pytest.fixture
def local(tmp_path: Path) -> Store:
    store = Store(tmp_path / "here")
    for step in (1, 2, 3):
        store.commit(state_at(step), {"step": step}, step=step)
    return store


@pytest.fixture
def remote(local: Store, tmp_path: Path) -> Store:
    shutil.copytree(local.root, tmp_path / "there" / "here")
    return Store(tmp_path / "there" / "here")


def pack_of(store: Store, tensor: str, version: int = 0) -> Pack:
    manifest = store.read(store.versions()[version])
    return manifest.packs[manifest.tensors[tensor].pack]


def flip(store: Store, pack: Pack) -> None:
    path = store.objects.path_of(pack.hash)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def repaired(local: Store, remote: Store | None) -> list[Repair]:
    return list(StoreRepair(Store(local.root), remote, "the place").steps())


@pytest.mark.parametrize("tensor", ["random/python", "files/run.json@000000000"])
def test_no_version_shares_what_would_end_them_all(local: Store, tensor: str) -> None:
    assert len({pack_of(local, tensor, version).hash for version in range(3)}) == 3
    flip(local, pack_of(local, tensor))
    name, _ = Store(local.root).newest()
    assert name is not None
    assert Store(local.root).read(name).step == (3 if tensor.startswith("files") else 2)


def test_a_damaged_copy_of_a_run_file_is_no_condition(local: Store) -> None:
    flip(local, pack_of(local, "files/tokenizer/tokenizer.json@000000000"))
    store = Store(local.root)
    assert store.newest() == (store.versions()[0], [])
    [repair] = repaired(local, None)
    assert repair.outcome is Outcome.LOST
    assert "tokenizer/tokenizer.json" in repair.text
    assert "no training needs it to go on" in repair.text


@pytest.mark.parametrize(
    "tensor", ["model/layer0", "frozen/base", "random/python", "files/metrics.jsonl@000000000"]
)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_damaged_object_comes_back(
    local: Store, remote: Store, tensor: str, is_gone: bool
) -> None:
    pack = pack_of(local, tensor)
    if is_gone:
        local.objects.path_of(pack.hash).unlink()
    else:
        flip(local, pack)
    [repair] = repaired(local, remote)
    assert repair.outcome is Outcome.REPAIRED
    assert pack.hash[:12] in repair.text
    assert (
        tensor.partition("/")[2].partition("@")[0] in repair.text
        or "model" in repair.text
        or (tensor.partition("/")[0] in repair.text)
    )
    store = Store(local.root)
    for name in store.versions():
        store.verify(store.read(name))
    assert repaired(local, remote) == []


def test_what_is_damaged_at_both_is_named_and_an_older_version_serves(
    local: Store, remote: Store
) -> None:
    for store in (local, remote):
        flip(store, pack_of(store, "model/layer0"))
    [repair] = repaired(local, remote)
    assert repair.outcome is Outcome.LOST
    assert "at the place it is damaged, too; this checkpoint cannot serve" in repair.text
    name, rejected = Store(local.root).newest()
    assert name == local.versions()[1]
    assert len(rejected) == 1


def test_a_damaged_manifest_comes_back(local: Store, remote: Store) -> None:
    newest = local.versions()[0]
    local.manifest_path(newest).write_bytes(b"{}")
    [repair] = repaired(local, remote)
    assert repair.outcome is Outcome.REPAIRED
    assert Store(local.root).newest() == (newest, [])


def test_damage_of_an_older_version_is_seen_too(local: Store, remote: Store) -> None:
    flip(local, pack_of(local, "model/layer0", 2))
    assert [r.outcome for r in repaired(local, remote)] == [Outcome.REPAIRED]


def test_what_is_too_much_to_read_is_compared_by_its_size(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infrastructure.backup.repair.run_repair.READ_ALL_BYTES", 0)
    flip(local, pack_of(local, "model/layer0", 2))
    assert repaired(local, None) == []
    local.objects.path_of(pack_of(local, "model/layer0", 1).hash).write_bytes(b"cut")
    assert [r.outcome for r in repaired(local, None)] == [Outcome.LOST]


def test_a_version_that_was_copied_and_is_gone_comes_back(local: Store, remote: Store) -> None:
    newest, *_ = local.versions()
    place = remote.root.parent
    backup = RunBackup(local.root, BackupConfig(place=str(place)), run_id="here")
    status = BackupStatus(place=str(place), state="finished", confirmed_name=newest)
    write_status(local.root / STATUS_FILE, status)
    local.manifest_path(newest).unlink()
    [repair] = backup.repair()
    assert repair.text == f"the checkpoint of step 3 was gone: brought back from {place}"
    assert Store(local.root).newest() == (newest, [])


def test_a_place_that_does_not_answer_stops_nothing(local: Store, tmp_path: Path) -> None:
    flip(local, pack_of(local, "model/layer0"))
    options = BackupConfig(place=str(tmp_path / "nowhere" / "at" / "all"))
    [repair] = RunBackup(local.root, options, run_id="here").repair()
    assert repair.outcome is Outcome.LOST
    assert Store(local.root).newest()[0] == local.versions()[1]


def test_the_place_is_not_read_while_all_is_whole(local: Store) -> None:
    class Silent(Store):
        def read(self, name: str) -> None:  # type: ignore[override]
            raise AssertionError("the place was asked")

    assert repaired(local, Silent(local.root)) == []


def test_the_newest_version_is_refused_where_nothing_can_be_had(local: Store) -> None:
    shutil.rmtree(local.root / "objects")
    assert Store(local.root).newest()[0] is None
    assert all(repair.outcome is Outcome.LOST for repair in repaired(local, None))
    with pytest.raises(CheckpointError):
        local.verify(local.read(local.versions()[0]))
