"""What is damaged in a store comes back from the same versions elsewhere, object by object."""

import errno
import shutil
from pathlib import Path

import pytest

from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.manifest import Pack, StoredTensor
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Placed, Store
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
    pack = pack_of(local, "files/tokenizer/tokenizer.json@000000000").hash[:12]
    problem = f"backup.object_problem(hash={pack}, problem=backup.object_bytes_changed())"
    held = "step 3, tokenizer/tokenizer.json"
    rest = "backup.no_other_copy(); backup.object_not_needed_to_resume()"
    text = f"{problem} ({held}); {rest}"
    assert repaired(local, None) == [Repair(f"object {pack}", Outcome.LOST, text)]


@pytest.mark.parametrize(
    ("tensor", "held"),
    [
        ("model/layer0", "model"),
        ("frozen/base", "frozen"),
        ("random/python", "random"),
        ("files/metrics.jsonl@000000000", "metrics.jsonl, run.json"),
    ],
)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_damaged_object_comes_back(
    local: Store, remote: Store, tensor: str, held: str, is_gone: bool
) -> None:
    pack = pack_of(local, tensor)
    if is_gone:
        local.objects.path_of(pack.hash).unlink()
    else:
        flip(local, pack)
    problem = "object_is_missing()" if is_gone else "object_bytes_changed()"
    error = f"backup.object_problem(hash={pack.hash[:12]}, problem=backup.{problem})"
    text = f"backup.object_restored(error={error}, held=step 3, {held}, where=the place)"
    assert repaired(local, remote) == [
        Repair(f"object {pack.hash[:12]}", Outcome.REPAIRED, text),
    ]
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
    damaged, unusable = "backup.other_copy_damaged(where=the place)", "backup.checkpoint_unusable()"
    assert f"{damaged}; {unusable}" in repair.text
    name, rejected = Store(local.root).newest()
    assert name == local.versions()[1]
    assert len(rejected) == 1


def test_a_damaged_manifest_comes_back(local: Store, remote: Store) -> None:
    newest = local.versions()[0]
    local.manifest_path(newest).write_bytes(b"{}")
    what, error = f"checkpoint {newest[:12]}", "backup.manifest_changed()"
    lost = f"{what}: {error}; backup.no_other_copy()"
    assert repaired(local, None) == [Repair(what, Outcome.LOST, lost)]
    text = f"backup.manifest_restored(what={what}, error={error}, where=the place)"
    assert repaired(local, remote) == [Repair(what, Outcome.REPAIRED, text)]
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
    assert repair.text == (f"backup.missing_checkpoint_restored(step=3, where={place})")
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


@pytest.mark.parametrize("is_there", [True, False])
def test_a_version_that_was_copied_is_missed_only_if_it_was_the_newest(
    local: Store, remote: Store, is_there: bool
) -> None:
    newest, before, _ = local.versions()
    local.manifest_path(newest).unlink()
    if not is_there:
        remote.manifest_path(newest).unlink()
    for confirmed in (None, before):
        assert list(StoreRepair(Store(local.root), remote, "the place").steps(confirmed)) == []
    [repair] = StoreRepair(Store(local.root), remote, "the place").steps(newest)
    what = f"checkpoint {newest[:12]}"
    error = "backup.has_no_copy(where=the place)"
    values = f"what={what}, where=the place, error={error}"
    assert repair == (
        Repair(
            what,
            Outcome.REPAIRED,
            "backup.missing_checkpoint_restored(step=3, where=the place)",
        )
        if is_there
        else Repair(what, Outcome.LOST, f"backup.confirmed_checkpoint_lost({values})")
    )
    assert Store(local.root).newest() == ((newest if is_there else before), [])


def test_a_manifest_that_is_damaged_at_both_is_lost_and_the_others_are_repaired(
    local: Store, remote: Store
) -> None:
    newest, before, _ = local.versions()
    for store in (local, remote):
        store.manifest_path(newest).write_bytes(b"{}")
    flip(local, pack := pack_of(Store(local.root), "model/layer0", 1))
    outcomes = [(r.what, r.outcome) for r in repaired(local, remote)]
    assert outcomes == [
        (f"checkpoint {newest[:12]}", Outcome.LOST),
        (f"object {pack.hash[:12]}", Outcome.REPAIRED),
    ]
    assert Store(local.root).newest()[0] == before


def test_a_silent_place_is_tried_once(local: Store, tmp_path: Path) -> None:
    class Silent(FileOperations):
        def size(self, path: Path) -> int:
            questions.append(path)
            raise OSError(errno.ENOTCONN, "not connected")

    questions: list[Path] = []
    for number in range(3):
        flip(local, pack_of(local, "model/layer0", number))
    repairs = repaired(local, Store(tmp_path / "there", Silent()))
    assert [repair.outcome for repair in repairs] == [Outcome.LOST] * 3
    why = "backup.destination_silent(where=the place, error=[Errno 107] not connected)"
    assert all(f"; {why}; backup.checkpoint_unusable()" in repair.text for repair in repairs)
    assert len({path.name[:64] for path in questions}) == 1


def test_what_other_machines_wrote_is_fetched_for_the_newest_that_can_be_had(
    tmp_path: Path,
) -> None:
    """Their parts lie at the place alone; of older versions nobody needs them here."""
    there, here = Store(tmp_path / "there"), Store(tmp_path / "here")
    for step in (1, 2, 3):
        tensors = {"model/theirs": TensorBytes("U8", (4,), bytes([step]) * 4)}
        [apart] = there.place(tensors).packs
        own = there.place({"model/ours": TensorBytes("U8", (1,), bytes([step]))})
        placed = Placed(
            (*own.packs, apart), {**own.tensors, "model/theirs": StoredTensor(1, "0" * 64)}
        )
        there.publish(placed, {"copied_apart": [apart.hash]}, step=step)
    shutil.copytree(there.root, here.root)
    parts = [there.read(name).packs[1] for name in there.versions()]
    for part in parts:
        here.objects.path_of(part.hash).unlink()
    assert Store(here.root).newest()[0] is None
    there.objects.path_of(parts[0].hash).write_bytes(b"damaged")
    [lost] = repaired(here, there)
    what, error = "backup.checkpoint_parts_elsewhere(step=3)", "backup.other_copy_damaged"
    text = f"backup.checkpoint_parts_unavailable(what={what}, error={error}(where=the place))"
    assert lost == Repair("backup.parts_of_other_machines()", Outcome.LOST, text)
    assert Store(here.root).newest()[0] == here.versions()[1]
    there.objects.path_of(parts[0].hash).unlink()
    there.place({"model/theirs": TensorBytes("U8", (4,), bytes([3]) * 4)})
    [fetched] = repaired(here, Store(there.root))
    text = "backup.checkpoint_parts_fetched(step=3, where=the place)"
    assert fetched == Repair("step 3", Outcome.REPAIRED, text)
    assert Store(here.root).newest() == (here.versions()[0], [])
    assert not here.objects.path_of(parts[2].hash).exists()
    assert repaired(here, Store(there.root)) == []
