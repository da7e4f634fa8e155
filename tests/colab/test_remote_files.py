"""What Drive gives, shared or mounted: a file, or a sentence on what to do."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import colab
from colab import remote_files
from colab.fetching_data import fetch_file
from colab.remote_files import DriveFile, MountedFile
from colab.transfer import Patience
from infrastructure.core.errors import DataError
from infrastructure.core.waiting import within
from tests.colab.fetching import HASH, HURRIED, IMPATIENT, ROWS, TRICKLED, fetch, parts, visible
from tests.colab.file_server import (
    LOGIN_PAGE,
    PIECE_BYTES,
    QUOTA_PAGE,
    FileServer,
    Served,
    shared_on_drive,
)

FILE_ID = "1aB_cD-eFgHiJkLmNoPqRsTuVwXyZ01234"


def drive(file_server: FileServer, patience: Patience = HURRIED) -> DriveFile:
    return DriveFile(FILE_ID, patience.silence_seconds, drive=file_server.url)


def test_a_file_on_drive_comes_through_the_page_that_warns(
    file_server: FileServer, tmp_path: Path
) -> None:
    shared_on_drive(file_server, FILE_ID, Served(ROWS, cuts=[7000]), "chats.jsonl")
    path = fetch(drive(file_server), tmp_path)
    assert (path.name, path.read_bytes()) == ("chats.jsonl", ROWS)
    assert "bytes=7000-" in file_server.ranges()


def test_a_small_file_on_drive_comes_at_once(file_server: FileServer, tmp_path: Path) -> None:
    headers = {"Content-Disposition": 'attachment; filename="a.jsonl"'}
    file_server.files[f"/uc?id={FILE_ID}"] = Served(ROWS, headers=headers)
    assert fetch(drive(file_server), tmp_path, HASH).read_bytes() == ROWS


@pytest.mark.parametrize(
    ("page", "status", "message"),
    [
        (
            QUOTA_PAGE,
            200,
            r"notebook\.drive_refuses\(.*error=Too many users have viewed .*share_drive_file\(\)",
        ),
        (
            LOGIN_PAGE,
            200,
            r"drive_refuses\(.*error=Cannot retrieve the public link .*share_drive_file\(\)",
        ),
        (
            b"<html>Not Found</html>",
            404,
            r"status=404, name=Not Found\).*check_link\(advice=notebook\.share_drive_file\(\)",
        ),
        (b"<html>Sorry</html>", 403, r"403, name=Forbidden\), advice=notebook\.share_drive_file"),
        (b"<html>Sorry</html>", 429, r"notebook\.drive_file_overused\(.*share_drive_file\(\)"),
        (b"<html>Error</html>", 500, r"status=500, name=Internal Server Error\)"),
    ],
)
def test_a_page_of_drive_is_never_taken_for_data(
    page: bytes, status: int, message: str, file_server: FileServer, tmp_path: Path
) -> None:
    html = {"Content-Type": "text/html; charset=utf-8"}
    file_server.files[f"/uc?id={FILE_ID}"] = Served(page, status, html)
    with pytest.raises(DataError, match=message) as raised:
        fetch(drive(file_server), tmp_path)
    assert visible(tmp_path) == []
    assert FILE_ID not in str(raised.value)


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        (
            Served(ROWS, cuts=[1000], is_always_cut=True, has_ranges=False),
            "download_failed.*error=peer",
        ),
        (Served(ROWS, pause_seconds=60), "download_failed.*timed out"),
        (Served(ROWS, pause_seconds=0.05, piece_bytes=5), "download_failed.*transfer_slow"),
        (Served(b"<html><body>Sorry</body></html>"), "data.path_is_not_data"),
        (Served(ROWS.replace(b"?", b"!")), "notebook.hash_differs"),
    ],
    ids=["truncated", "silent", "slow", "page", "hash"],
)
def test_what_drive_spoils_is_never_taken_for_data(
    spoilt: Served, message: str, file_server: FileServer, tmp_path: Path
) -> None:
    shared_on_drive(file_server, FILE_ID, spoilt, "chats.jsonl")
    wanted = HASH if "hash" in message else None
    patience = IMPATIENT if spoilt.pause_seconds else HURRIED
    if spoilt.piece_bytes < PIECE_BYTES:
        patience = TRICKLED
    with pytest.raises(DataError, match=message):
        fetch(drive(file_server, patience), tmp_path, wanted, patience)
    assert visible(tmp_path) == []


def test_drive_that_shows_page_after_page_is_left(file_server: FileServer, tmp_path: Path) -> None:
    shared_on_drive(file_server, FILE_ID, Served(ROWS), "chats.jsonl")
    file_server.files[f"/download?id={FILE_ID}"] = file_server.files[f"/uc?id={FILE_ID}"]
    with pytest.raises(DataError, match=r"notebook\.drive_shows_pages\("):
        fetch(drive(file_server), tmp_path)


def test_a_file_on_a_mounted_drive_is_copied_once_and_again_when_it_changes(
    tmp_path: Path,
) -> None:
    mounted = tmp_path / "drive" / "MyDrive" / "rows.jsonl"
    mounted.parent.mkdir(parents=True)
    mounted.write_bytes(ROWS)
    local = tmp_path / "local"
    path = colab.fetch_dataset(mounted, folder=local)
    assert (path, path.read_bytes()) == (local / "rows.jsonl", ROWS)
    before = path.stat()
    assert colab.fetch_dataset(mounted, folder=local).stat() == before
    mounted.write_bytes(ROWS + ROWS)
    path.write_bytes(b"my own rows")
    with pytest.raises(ValueError, match=r"notebook\.fetched_file_changed\("):
        colab.fetch_dataset(mounted, folder=local)
    path.write_bytes(ROWS)
    assert colab.fetch_dataset(mounted, folder=local).read_bytes() == ROWS + ROWS
    mounted.unlink()
    assert colab.fetch_dataset(mounted, folder=local) == path
    path.unlink()
    with pytest.raises(DataError, match=r"notebook\.drive_path_missing\("):
        colab.fetch_dataset(mounted, folder=local)


def test_a_folder_on_a_mounted_drive_is_used_where_it_lies(tmp_path: Path) -> None:
    folder = tmp_path / "MyDrive" / "data"
    folder.mkdir(parents=True)
    assert colab.fetch_dataset(folder) == folder


REMOUNT = r"backup\.advice_remount_drive\(mount=.*drive\)"
NOT_CONNECTED = OSError(errno.ENOTCONN, "Transport endpoint is not connected")


@pytest.mark.parametrize(
    ("failure", "message", "after"),
    [
        (NOT_CONNECTED, REMOUNT, ROWS),
        (NOT_CONNECTED, REMOUNT, ROWS.replace(b"?", b"!")),
        (OSError(errno.EIO, "Input/output error"), r"backup\.advice_drive_limit", ROWS),
        (None, rf"core\.no_response_in_time\(seconds=0\): {REMOUNT}", ROWS),
    ],
)
def test_a_mount_that_fails_in_the_middle_is_reported_and_the_next_call_goes_on(
    failure: OSError | None,
    message: str,
    after: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mounted = tmp_path / "drive" / "MyDrive" / "rows.jsonl"
    mounted.parent.mkdir(parents=True)
    mounted.write_bytes(ROWS)
    patience = IMPATIENT if failure is None else HURRIED
    remote = MountedFile(mounted, patience.silence_seconds)
    local = tmp_path / "local"
    released = threading.Event()
    monkeypatch.setattr(remote_files, "CHUNK_BYTES", 5000)
    with monkeypatch.context() as failing:
        failing.setattr(remote_files, "within", failing_at(6, failure, released))
        with pytest.raises(
            DataError,
            match=rf"notebook\.download_failed\(.*{message}.*notebook\.partial_download_kept\(",
        ):
            fetch_file(remote, None, local, 60, HURRIED)
    released.set()
    assert visible(local) == []
    assert parts(local)[0].stat().st_size > 0
    if after != ROWS:
        mounted.write_bytes(after)
    remote = MountedFile(mounted, HURRIED.silence_seconds)
    assert fetch_file(remote, None, local, 60, HURRIED).read_bytes() == after


def test_a_mount_that_gives_less_than_its_size_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = tmp_path / "drive" / "MyDrive" / "rows.jsonl"
    mounted.parent.mkdir(parents=True)
    mounted.write_bytes(ROWS)
    monkeypatch.setattr(remote_files, "CHUNK_BYTES", 5000)
    num_chunks = 0

    def short(seconds: float, question: Callable[[], object]) -> object:
        nonlocal num_chunks
        found = question()
        num_chunks += isinstance(found, bytes)
        return b"" if isinstance(found, bytes) and num_chunks > 2 else found

    monkeypatch.setattr(remote_files, "within", short)
    with pytest.raises(
        DataError, match=rf"notebook\.transfer_cut\(done=10000, total={len(ROWS)}\)"
    ):
        fetch_file(MountedFile(mounted, 1), None, tmp_path / "local", 60, HURRIED)
    assert visible(tmp_path / "local") == []


def failing_at(
    number: int, failure: OSError | None, released: threading.Event
) -> Callable[[float, Callable[[], object]], object]:
    """`within`, as it is on a mount that answers no question from the `number`th on."""
    timeouts: list[object] = []

    def limited(seconds: float, question: Callable[[], object]) -> object:
        timeouts.append(question)
        if len(timeouts) < number:
            return within(60, question)
        return within(seconds, lambda: answer(failure, released))

    return limited


def answer(failure: OSError | None, released: threading.Event) -> None:
    if failure is not None:
        raise failure
    released.wait(10)
