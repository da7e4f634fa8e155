"""Data from the Hugging Face Hub, played by a server on this machine."""

import hashlib
import re
from pathlib import Path

import pytest

import colab
from colab import transfer
from colab.fetching_data import fetch_from_hub
from infrastructure.core.errors import DataError, StorageError
from tests.colab.file_server import LOGIN_PAGE, FileServer, Served

ROWS = b'{"prompt": "1?", "completion": "1."}\n' * 400
HASH = hashlib.sha256(ROWS).hexdigest()
ADDRESS = "hf://datasets/me/chats/data/rows.jsonl"
COMMIT = "a" * 40
PATH = "/datasets/me/chats/resolve/main/data/rows.jsonl"


def serve(file_server: FileServer, data: bytes, path: str = PATH) -> None:
    facts = {"X-Repo-Commit": COMMIT}
    etag = f'"{hashlib.sha256(data).hexdigest()}"'
    served = Served(data, headers=facts, etag=etag)
    file_server.files[path] = file_server.files[pinned(path)] = served


def pinned(path: str) -> str:
    """The same file of the commit that is there now."""
    return re.sub("/resolve/[^/]+/", f"/resolve/{COMMIT}/", path)


def test_a_file_is_there_and_the_second_call_requests_nothing(
    file_server: FileServer, tmp_path: Path
) -> None:
    serve(file_server, ROWS)
    path = fetch_from_hub(ADDRESS, HASH, tmp_path, file_server.url)
    assert (path, path.read_bytes()) == (tmp_path / "rows.jsonl", ROWS)
    num_requests = len(file_server.requests)
    assert fetch_from_hub(ADDRESS, None, tmp_path, file_server.url) == path
    assert len(file_server.requests) == num_requests
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["rows.jsonl"]


def test_a_revision_is_requested(file_server: FileServer, tmp_path: Path) -> None:
    serve(file_server, ROWS, PATH.replace("main", "v2"))
    address = ADDRESS.replace("chats/", "chats@v2/")
    assert fetch_from_hub(address, None, tmp_path, file_server.url).read_bytes() == ROWS


def test_a_file_that_is_not_there_is_reported(file_server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"notebook\.hub_file_not_fetched\("):
        fetch_from_hub(ADDRESS, None, tmp_path, file_server.url)


@pytest.mark.parametrize(
    ("data", "wanted", "message"),
    [
        (ROWS, "0" * 64, "notebook.hash_differs"),
        (LOGIN_PAGE, None, "data.kind_web_page"),
        (b"", None, "data.kind_empty"),
    ],
)
def test_what_is_not_wanted_leaves_nothing(
    data: bytes, wanted: str | None, message: str, file_server: FileServer, tmp_path: Path
) -> None:
    serve(file_server, data)
    with pytest.raises(DataError, match=message):
        fetch_from_hub(ADDRESS, wanted, tmp_path, file_server.url)
    assert [p for p in tmp_path.rglob("*") if p.name == "rows.jsonl"] == []


def test_free_space_is_checked_first(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(file_server, ROWS)
    monkeypatch.setattr(transfer, "disk_free_bytes", lambda folder: transfer.SPARE_BYTES)
    with pytest.raises(StorageError, match=r"notebook\.not_enough_space\("):
        fetch_from_hub(ADDRESS, None, tmp_path, file_server.url)


@pytest.mark.parametrize(
    "address", ["hf://datasets/me/chats", "hf://", "hf://datasets/me/chats/../../../x"]
)
def test_an_address_of_no_file_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hf://"):
        colab.fetch_dataset(address, folder=tmp_path)


def test_a_whole_data_set_is_read_by_its_name_instead(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"notebook\.nothing_to_fetch\(source=me/chats@train,"):
        colab.fetch_dataset("me/chats@train", folder=tmp_path)
