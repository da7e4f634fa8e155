"""Field cases of the ways in and out of the machine: destinations of copies, downloads, webhooks."""

from pathlib import Path

import pytest

from colab import remote_files
from colab.fetching_data import fetch_from_hub, fetch_file
from colab.remote_files import MountedFile
from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.second_looks import LOOK_AGAIN_SECONDS, MOST_LOOKS_PER_HOUR
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import DataError, StorageError
from tests.backup.memory_place import RUN, save
from tests.backup.replication.test_copier import Rig
from tests.colab.fetching import HURRIED, ROWS, fetch, visible, web
from tests.colab.file_server import FileServer, Served, file_server
from tests.colab.test_hub_data import ADDRESS, pinned, serve
from tests.colab.test_hub_data import PATH as HUB_PATH

__all__ = ["file_server"]
CHANGED = ROWS.replace(b"?", b"!")


def shared_object(rig: Rig, name: str) -> Path:
    """The object that all versions name."""
    manifest = rig.local.read(name)
    return rig.remote.objects.path_of(manifest.packs[manifest.tensors["frozen/base"].pack].hash)


def test_f8_what_a_destination_lost_is_not_confirmed_by_an_earlier_look(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    name = rig.copy(20)
    path = shared_object(rig, name)
    del rig.place.files.files[path]
    assert (newest := rig.copy(40)) != name
    assert path in rig.place.files.files
    rig.remote.verify(rig.remote.read(newest))


def test_f8_a_look_finds_a_loss_withdraws_the_claim_and_repairs_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.copy(20)
    name = rig.copy(40)
    before = rig.copier.status()
    path = shared_object(rig, name)
    data = rig.place.files.files.pop(path)
    lost_at = rig.clock.now
    rig.run_until(lambda: rig.copier.status().confirmed_name is None)
    assert rig.clock.now - lost_at <= LOOK_AGAIN_SECONDS + 60
    assert str(path) in str(rig.copier.status().error) or rig.copier.status().error
    rig.run_until(lambda: rig.copier.status().is_safe)
    assert rig.place.files.files[path] == data
    status = rig.copier.status()
    assert status.confirmed_name == name
    assert status.compared_at is not None
    assert before.compared_at is not None
    assert status.compared_at > before.compared_at
    assert status.error is None


def test_f8_a_loss_that_cannot_be_repaired_is_named_and_the_version_before_counts(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    first, second = rig.copy(1), rig.copy(2)
    own = {p.hash for p in rig.local.read(second).packs} - {
        p.hash for p in rig.local.read(first).packs
    }
    lost = rig.remote.objects.path_of(min(own))
    rig.local.remove_all_but([first])  # this machine does not hold it any more
    del rig.place.files.files[lost]
    rig.run_until(lambda: rig.copier.status().confirmed_name != second)
    status = rig.copier.status()
    assert status.confirmed_name == first
    assert second[:12] in str(status.error)
    assert "does not hold it any more" in str(status.error)
    rig.place.removed.clear()
    third = rig.copy(3)
    assert rig.copier.status().confirmed_name == third
    assert rig.remote.manifest_path(first) in rig.place.files.files, "two whole ones are kept"


def test_f8_looks_keep_to_their_bound_of_questions(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.copy(1)
    rig.copy(2)
    looks: list[Path] = []

    def count(operation: str, path: Path) -> None:
        if operation in ("confirm", "size") and path.is_relative_to(RUN):
            looks.append(path)

    rig.place.fault = count
    began = rig.clock.now
    while rig.clock.now < began + 3600:
        rig.clock.now += rig.copier.tick()
    num_files = len({*looks})
    assert num_files == 2 + 5  # manifests; a shared object, and two that each has alone
    assert len(looks) == pytest.approx(num_files * 3600 / LOOK_AGAIN_SECONDS, abs=num_files)
    assert len(looks) <= MOST_LOOKS_PER_HOUR


def test_f8_the_status_names_how_the_bytes_were_compared(tmp_path: Path) -> None:
    content = Content.of([b"abc"], FolderPlace(tmp_path).hashes)
    mounts = tmp_path / "mounts"
    for kind, expected in (("ext4", Evidence.READ_BACK), ("fuse.rclone", Evidence.MOUNT)):
        mounts.write_text(f"disk {tmp_path} {kind} rw 0 0\n")
        place = FolderPlace(tmp_path / "place", mounts=mounts)
        place.write(Path("file"), [b"abc"])
        assert place.confirm(Path("file"), content) == expected


def test_f8_the_end_of_a_run_looks_once_more(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    options = BackupConfig(place=str(place), finish_seconds=30)
    backup = RunBackup(tmp_path / "run" / "checkpoints", options, run_id=RUN)
    with backup:
        for step in (1, 2):
            save(backup.store, step)
            status = backup.finish()
            assert status.is_safe
        assert status.compared_by == Evidence.READ_BACK
        remote = Store(place / RUN)
        manifest = remote.read(remote.versions()[0])
        gone, damaged = (remote.objects.path_of(pack.hash) for pack in manifest.packs[:2])
        gone.unlink()
        damaged.write_bytes(bytes(damaged.stat().st_size))
        assert backup.status().is_safe, "nobody has looked since"
        status = backup.finish()
        assert status.is_safe
        remote.verify(manifest)


@pytest.mark.parametrize(
    "after",
    [
        Served(CHANGED, etag='"v2"', ignores_if_range=True),
        Served(CHANGED, etag=None, ignores_if_range=True),
        Served(CHANGED + b"{}\n", etag='"v1"', ignores_if_range=True),
        Served(CHANGED, etag='W/"v1"', ignores_if_range=True),
    ],
    ids=["another etag", "no etag", "another length", "a weak etag"],
)
def test_p1_the_end_of_another_version_is_never_put_behind_a_beginning(
    after: Served, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, cuts=[5000], then=after)
    assert fetch(web(file_server), tmp_path).read_bytes() == after.data


def test_p1_another_date_is_another_version(file_server: FileServer, tmp_path: Path) -> None:
    first, then = ({"Last-Modified": f"Mon, 0{day} Jan 2024 00:00:00 GMT"} for day in (1, 2))
    after = Served(CHANGED, headers=then, etag=None, ignores_if_range=True)
    file_server.files["/rows.jsonl"] = Served(ROWS, headers=first, etag=None, cuts=[5000], then=after)
    assert fetch(web(file_server), tmp_path).read_bytes() == CHANGED


def test_p1_a_mounted_file_that_changes_while_it_is_read_is_read_again_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = tmp_path / "drive" / "MyDrive" / "rows.jsonl"
    mounted.parent.mkdir(parents=True)
    mounted.write_bytes(ROWS)
    monkeypatch.setattr(remote_files, "CHUNK_BYTES", 5000)
    real, changes = MountedFile._query, iter([CHANGED])

    def query(self: MountedFile, question: object) -> object:
        found = real(self, question)  # type: ignore[arg-type]
        if isinstance(found, bytes) and (data := next(changes, None)) is not None:
            mounted.write_bytes(data)
        return found

    monkeypatch.setattr(MountedFile, "_query", query)
    local = tmp_path / "local"
    path = fetch_file(MountedFile(mounted, 20), None, local, 60, HURRIED)
    assert path.read_bytes() == CHANGED


def test_p1_the_hub_s_file_is_of_one_commit_and_has_the_hash_that_the_hub_names(
    file_server: FileServer, tmp_path: Path
) -> None:
    serve(file_server, ROWS)
    file_server.files[HUB_PATH] = Served(
        ROWS,
        headers=file_server.files[HUB_PATH].headers,
        etag=file_server.files[HUB_PATH].etag,
        then=Served(CHANGED, headers={"X-Repo-Commit": "b" * 40}, etag='"v2"'),
    )
    path = fetch_from_hub(ADDRESS, None, tmp_path / "one", file_server.url)
    assert path.read_bytes() == ROWS
    serve(file_server, ROWS)
    file_server.files[pinned(HUB_PATH)].data = CHANGED  # a cache on the way gives another one
    with pytest.raises(DataError, match="not those that the Hub names"):
        fetch_from_hub(ADDRESS, None, tmp_path / "two", file_server.url)
    assert visible(tmp_path / "two") == []
