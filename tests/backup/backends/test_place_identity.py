"""A place is what its marker says, whatever its path or its device number."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.base import Content
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.backends.place_identity import FOLDER, PlaceRecord, ids_at
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.copier import Copier
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.core.checksums import read_record
from tests.backup.memory_place import RUN, run_until, save
from tests.faults.drive_model import Clock
from tests.faults.lost_mount import can_mount

FILE = Path("run-1/objects/ab/abcd")
CONTENT = Content.of([b"hello"])


def put_away(folder: Path) -> Path:
    """What is left when a mount goes away: an empty folder of the disk below."""
    away = folder.with_name(f"{folder.name}-elsewhere")
    folder.rename(away)
    folder.mkdir()
    return away


def put_back(folder: Path, away: Path) -> None:
    folder.rmdir()
    away.rename(folder)


@pytest.mark.parametrize("kind", ["", "file://", "drive:"])
def test_an_empty_folder_in_its_stead_is_no_place(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mount").mkdir()
    place = open_place(f"{kind}{tmp_path / 'mount'}")
    place_id = place.identify()
    place.write(FILE, [b"hello"])
    away = put_away(tmp_path / "mount")
    for action in (
        lambda: place.write(Path("run-1/objects/ab/other"), [b"x"]),
        lambda: place.confirm(FILE, CONTENT),
        lambda: place.remove(FILE),
        lambda: open_place(str(tmp_path / "mount")).identify(place_id),
    ):
        with pytest.raises(OSError, match=r"folder_without_marker|drive_connection_lost") as raised:
            action()
        assert raised.value.errno == errno.ENOTCONN
    assert list((tmp_path / "mount").iterdir()) == []
    put_back(tmp_path / "mount", away)
    place.write(FILE, [b"hello"])
    assert open_place(str(tmp_path / "mount")).identify() == place_id


def test_a_file_below_a_mount_that_goes_away_meanwhile_is_not_confirmed(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()

    class GoesAway(FolderPlace):
        def read_back(self, path: Path) -> Iterator[Buffer]:
            put_away(self.root)  # between the first look and the reading
            target = self.at(path)
            target.parent.mkdir(parents=True)
            target.write_bytes(b"hello")
            return super().read_back(path)

    place = GoesAway(tmp_path / "mount")
    place.identify()
    place.write(FILE, [b"hello"])
    with pytest.raises(OSError, match=r"backup\.folder_without_marker"):
        place.confirm(FILE, CONTENT)


def test_another_disk_at_the_same_path_is_not_taken_for_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    url = str(tmp_path / "mount")
    first = open_place(url).identify()
    put_away(tmp_path / "mount")
    assert open_place(url).identify() != first
    with pytest.raises(OSError, match=r"backup\.another_destination"):
        open_place(url).identify(first)


@pytest.mark.parametrize("url", ["{}", "memory://marked/at-once"])
def test_two_runs_may_mark_a_place_at_the_same_instant(tmp_path: Path, url: str) -> None:
    (tmp_path / "mount").mkdir()
    address = url.format(tmp_path / "mount")
    with ThreadPoolExecutor(8) as runs:
        found = list(runs.map(lambda _: open_place(address).identify(), range(8)))
    for place_id in found:
        assert open_place(address).identify(place_id) == place_id
    assert set(found) <= {*ids_at(open_place(address))}
    assert open_place(address).identify() in ids_at(open_place(address))


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"id": "other"}'])
def test_a_marker_that_a_killed_run_left_in_part_is_none(tmp_path: Path, damage: bytes) -> None:
    place = open_place(str(tmp_path / "place"))
    (tmp_path / "place" / FOLDER).mkdir(parents=True)
    (tmp_path / "place" / FOLDER / ("0" * 32)).write_bytes(damage)
    assert place.identify() != "0" * 32


def test_an_older_place_gets_a_marker_at_first_contact(tmp_path: Path) -> None:
    local, place = Store(tmp_path / "here"), open_place(str(tmp_path / "place"))
    Store(Path(RUN), place)
    place.write(Path("run-0/versions/x.json"), [b"of an older release"])
    record = PlaceRecord(tmp_path / "place.json")
    clock = Clock(1000.0)
    copier = Copier(
        local, RemoteSession(place, RUN, clock=clock), Retention(), record=record, now=clock
    )
    save(local, 1)
    run_until(copier.tick, lambda: copier.is_done, clock)
    assert read_record(record.path) == {place.url: place.identity}
    assert ids_at(place) == [place.identity]


def test_what_goes_away_is_reported_at_once_and_gone_on_with_when_it_is_back(
    tmp_path: Path,
) -> None:
    (tmp_path / "mount").mkdir()
    local, clock = Store(tmp_path / "here"), Clock(1000.0)
    link = RemoteSession(open_place(str(tmp_path / "mount")), RUN, clock=clock)
    copier = Copier(local, link, Retention(), now=clock, draw=lambda: 1.0)
    first = save(local, 1)
    run_until(copier.tick, lambda: copier.is_done, clock)
    away = put_away(tmp_path / "mount")
    clock.now += copier.tick() + copier.tick()
    assert "backup.folder_without_marker" in str(copier.status().error), "an idle copier looks, too"
    second = save(local, 2)
    for _ in range(20):
        clock.now += copier.tick()
    assert list((tmp_path / "mount").iterdir()) == []
    assert copier.status().confirmed_name == first
    put_back(tmp_path / "mount", away)
    run_until(copier.tick, lambda: copier.is_done, clock)
    assert copier.status().confirmed_name == second
    assert Store(tmp_path / "mount" / RUN).newest() == (second, [])
    copier.close()


def test_a_mount_that_goes_away_and_comes_back_with_another_device_number(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("nothing can be mounted here; the tests above rename folders")
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-m", "tests.faults.lost_mount", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["below"] == [], "nothing was written below the mount"
    assert "backup.folder_without_marker" in record["error"]
    assert record["devices"][0] != record["devices"][1]
    assert record["confirmed"] == record["newest"]
    assert record["safe"] is True


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_a_record_with_a_flipped_bit_is_none(
    position: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the right place would be taken for another one, and refused for ever."""
    record = PlaceRecord(tmp_path / "place.json")
    record.write("/mnt/a", "0" * 32)
    data = bytearray(record.path.read_bytes())
    data[position % len(data)] ^= 1
    record.path.write_bytes(data)
    assert record.id_of("/mnt/a") in (None, "0" * 32)
    if record.id_of("/mnt/a") is None:
        assert "backup.identity_record_damaged(error=" in caplog.text
        assert "place.json" in caplog.text
    record.write("/mnt/a", "1" * 32)
    assert record.id_of("/mnt/a") == "1" * 32


def test_a_record_of_an_older_version_holds(tmp_path: Path) -> None:
    (tmp_path / "place.json").write_text(json.dumps({"/mnt/a": "0" * 32}))
    record = PlaceRecord(tmp_path / "place.json")
    assert record.id_of("/mnt/a") == "0" * 32
    record.forget("/mnt/a")
    assert record.id_of("/mnt/a") is None


def test_a_record_is_of_each_place_by_itself(tmp_path: Path) -> None:
    record = PlaceRecord(tmp_path / "place.json")
    record.forget("/mnt/a")
    assert not record.path.exists()
    for number, url in enumerate(("/mnt/a", "/mnt/b", "/mnt/c")):
        record.write(url, f"{number}" * 32)
    record.write("/mnt/b", "9" * 32)
    record.forget("/mnt/a")
    again = PlaceRecord(tmp_path / "place.json")
    known = [again.id_of(url) for url in ("/mnt/a", "/mnt/b", "/mnt/c")]
    assert known == [None, "9" * 32, "2" * 32]
