"""The backup of one run by itself: what is damaged comes back, and which place is its own."""

import shutil
from pathlib import Path

import pytest

from infrastructure.backup.repair.run_repair import Outcome
from infrastructure.backup.replication.status import BackupStatus, write_status
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import StorageError
from tests.faults.store_history import tensors_at

RUN = "run-1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run whose two versions lie at a place, too."""
    place = tmp_path / "place"
    place.mkdir()
    backup = RunBackup(tmp_path / "run/checkpoints", run_id=RUN)
    for step in (1, 2):
        backup.store.commit(tensors_at(step), {}, step=step)
    shutil.copytree(backup.store.root, place / RUN)
    return tmp_path


def backup_of(folder: Path, place: str | None = "place") -> RunBackup:
    options = BackupConfig(place=None if place is None else str(folder / place))
    return RunBackup(folder / "run/checkpoints", options, run_id=RUN)


def damage(backup: RunBackup) -> None:
    """Flip a bit of each object."""
    for path in [*backup.store.root.glob("objects/*/*")]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def test_what_is_damaged_here_comes_back_from_the_place(folder: Path) -> None:
    backup = backup_of(folder)
    assert backup.repair() == []
    damage(backup)
    repairs = backup.repair()
    assert {repair.outcome for repair in repairs} == {Outcome.REPAIRED}
    newest = backup.store.versions()[0]
    backup.store.verify(backup.store.read(newest))
    assert backup.repair() == []


def test_without_a_place_what_is_damaged_is_named(folder: Path) -> None:
    backup = backup_of(folder, place=None)
    damage(backup)
    assert Outcome.LOST in {repair.outcome for repair in backup.repair()}


def test_a_store_that_is_gone_comes_back_where_a_version_was_confirmed(folder: Path) -> None:
    """Where nothing was, there is nothing to look for at a place."""
    whole = backup_of(folder)
    name = whole.store.versions()[0]
    shutil.rmtree(whole.store.root)
    assert backup_of(folder).repair() == []
    assert not whole.store.versions()
    status = BackupStatus(place=str(folder / "place"), confirmed_name=name, confirmed_step=2)
    whole.store.root.mkdir(parents=True)
    write_status(whole.status_path, status)
    assert backup_of(folder, place=None).repair() == []
    assert backup_of(folder).repair()
    backup = backup_of(folder)
    assert backup.store.versions() == [name]
    backup.store.verify(backup.store.read(name))


def test_whichever_lies_there_now_is_the_place_once_a_person_has_named_it(folder: Path) -> None:
    backup = backup_of(folder)
    backup.check_place()
    backup.remember_place(backup.place_id)
    first = backup.place_id
    assert first is not None
    shutil.rmtree(folder / "place")
    (folder / "place").mkdir()
    with pytest.raises(StorageError):
        backup_of(folder).check_place()
    backup_of(folder, place=None).adopt_place()  # of which there is none
    with pytest.raises(StorageError):
        backup_of(folder).check_place()
    backup_of(folder).adopt_place()
    again = backup_of(folder)
    again.check_place()
    assert again.place_id not in (first, None)
