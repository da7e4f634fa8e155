"""A storage backend of somebody's own: found by name and by address, here and by the copier."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.backup.backends import BACKENDS, backend_of, open_place, register_backend
from infrastructure.backup.backends.base import Place
from infrastructure.backup.backends.drive import DrivePlace
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.features.conformance.storage_backend import StorageBackendSuite
from tests.backup.backends.own_places import WRITERS, FilesPlace, LacksConfirm, open_files

HERE = "tests.backup.backends.own_places"


class TestFiles(StorageBackendSuite):
    def open(self, folder: Path) -> Place:
        return open_place(f"{HERE}:FilesPlace://{folder}/files")


@pytest.fixture
def mine() -> Iterator[None]:
    register_backend("mine", FilesPlace)
    yield
    BACKENDS.unregister("mine")


@pytest.mark.parametrize(
    "scheme",
    [f"{HERE}:FilesPlace", f"{HERE}:open_files", "mine"],
    ids=["class", "function", "name"],
)
@pytest.mark.usefixtures("mine")
def test_the_copier_keeps_backups_there(scheme: str, tmp_path: Path) -> None:
    """The real process, which has imported it anew."""
    options = BackupConfig(place=f"{scheme}://{tmp_path}/files")
    with RunBackup(tmp_path / "run-1/checkpoints", options, run_id="run-1") as backup:
        data = bytes(range(256)) * 100
        name = backup.store.commit({"model/w": TensorBytes("U8", (len(data),), data)}, {}, step=3)
        backup.start()
        backup.nudge()
        assert backup.finish(120.0).confirmed_name == name
    remote = Store(Path("run-1"), open_place(str(options.place)))
    assert remote.newest() == (name, [])
    writers = {int(line) for line in (tmp_path / "files" / WRITERS).read_text().split()}
    assert writers - {os.getpid()}, "this process has written everything itself"


def test_a_registered_scheme_goes_before_ours_and_fsspecs(tmp_path: Path) -> None:
    for scheme, text in {
        "s3": "s3://bucket/x",
        "hf": "hf://me/x",
        "folder": str(tmp_path),
        "drive": f"drive:{tmp_path}",
    }.items():
        with BACKENDS.registered(scheme, FilesPlace):
            assert type(open_place(text)) is FilesPlace, scheme
    assert type(open_place(str(tmp_path))) is FolderPlace


def test_which_backend_a_text_means() -> None:
    for text, name in {
        "backups": "folder",
        "a:b": "folder",
        "drive:/x": "drive",
        "FILE:///x": "file",
        "hf://me/x": "hf",
        "memory://x": "fsspec",
        "folder://x": "fsspec",
        "simplecache::s3://x": "fsspec",
        "my_module:Mine://": "my_module:Mine",
    }.items():
        assert backend_of(text) == name, text


def test_a_folder_may_be_written_in_many_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for text, url in {
        "backups": f"{tmp_path}/backups",
        "~/backups": "/home/me/backups",
        "file:///mnt/my%20disk": "/mnt/my disk",
        "local:///mnt/x": "/mnt/x",
        "drive:MyDrive/x": f"{tmp_path}/MyDrive/x",
        "MyDrive": f"{tmp_path}/MyDrive",
    }.items():
        place = open_place(text)
        assert (place.url, type(place) is DrivePlace) == (url, "MyDrive" in text)
    for text in ("", "  "):
        with pytest.raises(ValueError, match=r"^backup\.destination_empty\(\)$"):
            open_place(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{HERE}:LacksConfirm://x", r"core\.plugin_incomplete.*LacksConfirm.*missing=confirm"),
        (
            f"{HERE}:open_nothing://x",
            "core.created_part_incomplete",
        ),
        (f"{HERE}:FilePlace://x", r"core\.plugin_attribute_missing.*FilePlace.*FilesPlace"),
        ("no_such_module:X://x", r"core\.plugin_module_not_found.*no_such_module"),
        ("miine://x", r"backup\.unknown_url_scheme.*miine.*meant=mine.*\bs3\b"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_a_wrong_one_is_reported_at_once(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        RunBackup(tmp_path / "run-1/checkpoints", BackupConfig(place=text), run_id="run-1")
    assert not (tmp_path / "run-1").exists()


def test_one_that_the_copier_could_not_import_is_refused_at_once(tmp_path: Path) -> None:
    class Local(FilesPlace): ...

    with BACKENDS.registered("local_one", Local):
        open_place("local_one://x")  # for this process alone
        with pytest.raises(ValueError, match=r"core\.plugin_not_importable"):
            RunBackup(tmp_path, BackupConfig(place="local_one://x"), run_id="run-1")


def test_one_that_lacks_a_method_is_not_registered() -> None:
    with pytest.raises(ValueError, match=r"core\.plugin_incomplete.*missing=confirm"):
        register_backend("lacking", LacksConfirm)
    assert not BACKENDS.has("lacking")
    assert open_files("x://y").url == "x://y"
