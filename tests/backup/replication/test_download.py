"""What is fetched from a place is whole; and a place that does not answer is not a damaged one."""

import errno
from pathlib import Path

import pytest

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.download import (
    FIRST_WAIT_SECONDS,
    NUM_ATTEMPTS,
    fetch_newest,
)
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.core.errors import CheckpointError, StorageError
from tests.backup.memory_place import RUN, MemoryPlace, disconnected, save
from tests.faults.drive_model import Clock


class Rig:
    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.place = MemoryPlace()
        self.link = RemoteSession(self.place, RUN, clock=self.clock)
        self.local = Store(directory / "here")
        self.names = [save(self.link.store, step) for step in (1, 2)]

    def fetch(self, step: int | None = None) -> str:
        return fetch_newest(self.link, self.local, step, lambda d, t: None, self.clock.sleep)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_the_newest_or_that_of_a_step_is_fetched(rig: Rig) -> None:
    assert rig.fetch() == rig.names[1]
    assert rig.fetch(1) == rig.names[0]
    assert rig.local.versions() == rig.names[::-1]
    with pytest.raises(CheckpointError) as raised:
        rig.fetch(3)
    about = f"url=memory:here, run_id={RUN}, details="
    assert str(raised.value) == f"backup.no_intact_checkpoint_of_step(step=3, {about})"
    empty = RemoteSession(rig.place, "another", clock=rig.clock)
    with pytest.raises(CheckpointError) as raised:
        fetch_newest(empty, rig.local, None, lambda d, t: None, rig.clock.sleep)
    about = about.replace(RUN, "another")
    assert str(raised.value) == f"backup.no_intact_checkpoint({about})"


def test_evidence_is_fetched_only_by_its_step(rig: Rig) -> None:
    evidence = save(rig.link.store, 3, healthy=False)
    assert rig.fetch() == rig.names[1]
    assert rig.fetch(3) == evidence


def test_a_short_interruption_is_waited_for(rig: Rig) -> None:
    def away(operation: str, path: Path) -> None:
        if rig.clock.now < 4.0:
            disconnected(operation, path)

    rig.place.fault = away
    assert rig.fetch() == rig.names[1]


def test_a_place_that_is_away_is_no_reason_to_take_an_older_version(rig: Rig) -> None:
    manifest = rig.link.store.read(rig.names[1])
    pack = manifest.packs[manifest.tensors["model/w"].pack].hash

    def refuses(operation: str, path: Path) -> None:
        if operation == "read" and path.name.startswith(pack):
            raise OSError(errno.EIO, "Input/output error")

    rig.place.fault = refuses
    with pytest.raises(
        StorageError,
        match=r"run\.destination_not_responding\(.*Input/output error, advice=look at it",
    ):
        rig.fetch()
    assert rig.local.versions() == []


def test_a_version_of_which_a_part_stays_away_is_passed_over(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = rig.link.store.read(rig.names[1])
    pack = manifest.packs[manifest.tensors["model/w"].pack].hash
    del rig.place.files.files[rig.link.store.objects.path_of(pack)]
    assert rig.fetch() == rig.names[0]
    damage = f"damage={rig.names[1][:12]}: backup.object_problem(hash={pack[:12]}, "
    assert f"backup.skips_damaged_checkpoint(url=memory:here, {damage}" in caplog.text
    assert "backup.object_is_missing" in caplog.text
    with pytest.raises(CheckpointError, match=r"of_step\(step=2.*details=; 0+2.*object_is_missing"):
        rig.fetch(2)


@pytest.mark.parametrize("what", ["manifest", "object"])
def test_a_file_that_is_missing_for_a_moment_is_waited_for(rig: Rig, what: str) -> None:
    """A mount may list a version before all of it can be read."""
    manifest = rig.link.store.read(rig.names[1])
    pack = manifest.packs[manifest.tensors["model/w"].pack].hash
    hidden = rig.names[1] if what == "manifest" else pack

    def hides(operation: str, path: Path) -> None:
        if path.stem == hidden and rig.clock.now < FIRST_WAIT_SECONDS:
            raise FileNotFoundError(path)

    rig.place.fault = hides
    assert rig.fetch() == rig.names[1]


def test_the_waits_double_until_it_is_given_up(rig: Rig) -> None:
    rig.place.fault = disconnected
    waits: list[float] = []
    with pytest.raises(StorageError, match=r"run\.destination_not_responding"):
        fetch_newest(rig.link, rig.local, None, lambda done, total: None, waits.append)
    assert waits == [FIRST_WAIT_SECONDS * 2**n for n in range(NUM_ATTEMPTS)]
    assert 5 < sum(waits) < 600


def test_damaged_copies_of_run_files_are_left_out_and_reported(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = {
        "model/w": TensorBytes("U8", (3,), b"123"),
        "files/log": TensorBytes("U8", (1,), b"x"),
    }
    name = rig.link.store.commit(tensors, {}, step=3)
    manifest = rig.link.store.read(name)
    log = rig.link.store.objects.path_of(manifest.packs[manifest.tensors["files/log"].pack].hash)
    rig.place.files.files[log] = bytes(len(rig.place.files.files[log]))
    assert rig.fetch() == name
    assert "backup.remote_run_files_damaged(url=memory:here, error=backup.object_problem(" in (
        caplog.text
    )
