"""What people paste as the source of their data, and what it means."""

from pathlib import Path

import pytest

from colab.data_source import find_remote
from colab.remote_files import DriveFile, MountedFile, WebFile

FILE_ID = "1aB_cD-eFgHiJkLmNoPqRsTuVwXyZ01234"
DOCS = f"https://docs.google.com/spreadsheets/d/{FILE_ID}"


@pytest.mark.parametrize(
    "link",
    [
        FILE_ID,
        f"https://drive.google.com/file/d/{FILE_ID}/view?usp=sharing",
        f"https://drive.google.com/file/d/{FILE_ID}/view?usp=drive_link",
        f"https://drive.google.com/file/d/{FILE_ID}",
        f"https://drive.google.com/file/u/1/d/{FILE_ID}/edit",
        f"https://drive.google.com/open?id={FILE_ID}",
        f"https://drive.google.com/uc?export=download&id={FILE_ID}",
        f"https://drive.usercontent.google.com/download?id={FILE_ID}&confirm=t",
    ],
)
def test_every_way_to_write_a_file_on_drive(link: str) -> None:
    remote = find_remote(link, 1.0)
    assert isinstance(remote, DriveFile)
    assert remote.identity == f"drive {FILE_ID}"
    assert remote.address == f"https://drive.google.com/uc?export=download&id={FILE_ID}"
    assert FILE_ID not in remote.shown


def test_the_key_of_an_old_link_is_sent_along() -> None:
    link = f"https://drive.google.com/file/d/{FILE_ID}/view?resourcekey=0-abc&usp=sharing"
    remote = find_remote(link, 1.0)
    assert isinstance(remote, WebFile)
    assert remote.address.endswith("&resourcekey=0-abc")


@pytest.mark.parametrize(
    ("link", "address"),
    [
        (f"{DOCS}/edit#gid=42", f"{DOCS}/export?format=csv&gid=42"),
        (f"{DOCS}/edit?gid=7#gid=7", f"{DOCS}/export?format=csv&gid=7"),
        (f"{DOCS}/edit?usp=sharing", f"{DOCS}/export?format=csv"),
        (
            f"https://docs.google.com/document/d/{FILE_ID}/edit",
            f"https://docs.google.com/document/d/{FILE_ID}/export?format=txt",
        ),
    ],
)
def test_a_table_comes_as_csv_and_a_document_as_text(link: str, address: str) -> None:
    remote = find_remote(link, 1.0)
    assert isinstance(remote, WebFile)
    assert remote.address == address


@pytest.mark.parametrize(
    "link",
    [
        f"https://drive.google.com/drive/folders/{FILE_ID}",
        f"https://drive.google.com/drive/u/0/folders/{FILE_ID}?usp=sharing",
        "https://drive.google.com/drive/my-drive",
        f"https://docs.google.com/presentation/d/{FILE_ID}/edit",
        "https://drive.google.com/open?id=../../x",
    ],
)
def test_a_link_to_no_file_is_refused(link: str) -> None:
    with pytest.raises(ValueError, match=r"notebook\.drive_link_of_no_file\("):
        find_remote(link, 1.0)


@pytest.mark.parametrize("address", ["https://", "http:///x", "https://[bad/x"])
def test_an_address_without_a_server_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"notebook\.not_a_web_address\("):
        find_remote(address, 1.0)


def test_a_file_that_is_called_like_an_id_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(FILE_ID).write_text("rows")
    assert find_remote(FILE_ID, 1.0) is None


@pytest.mark.parametrize(
    "path", ["/content/drive/MyDrive/a.jsonl", "/content/drive/Shareddrives/team/a.jsonl"]
)
def test_a_path_on_drive_is_one_before_drive_is_mounted(path: str) -> None:
    remote = find_remote(path, 1.0)
    assert isinstance(remote, MountedFile)
    assert remote.path == Path(path)


@pytest.mark.parametrize("source", ["rows.jsonl", "owner/name", "hf://datasets/o/n/a.jsonl"])
def test_what_is_not_elsewhere_or_the_hubs_is_not_fetched_like_this(source: str) -> None:
    assert find_remote(source, 1.0) is None
