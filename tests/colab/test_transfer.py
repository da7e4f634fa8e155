"""Whatever a server does: what it gives is here whole, or it is not here."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import colab
from colab import transfer
from colab.fetching_data import fetch_file
from colab.remote_files import WebFile
from infrastructure.core.errors import DataError, StorageError
from tests.colab.fetching import (
    HASH,
    HURRIED,
    IMPATIENT,
    ROWS,
    TRICKLED,
    fetch,
    parts,
    visible,
    web,
)
from tests.colab.file_server import FileServer, Served


@pytest.mark.parametrize("headers", [{}, {"Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}])
def test_a_broken_transfer_goes_on_where_it_was(
    headers: dict[str, str], file_server: FileServer, tmp_path: Path
) -> None:
    etag = None if headers else '"v1"'
    file_server.files["/rows.jsonl"] = Served(ROWS, headers=headers, etag=etag, cuts=[5000, 3000])
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert file_server.ranges() == ["", "bytes=5000-", "bytes=8000-"]


def test_a_server_that_knows_no_ranges_sends_all_again(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, cuts=[5000], has_ranges=False)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert file_server.ranges() == ["", "bytes=5000-"]


@pytest.mark.parametrize("etag", [None, 'W/"v1"'])
def test_what_has_no_version_is_not_gone_on_with(
    etag: str | None, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, cuts=[5000], etag=etag)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert file_server.ranges() == ["", ""]


def test_another_part_than_was_requested_is_not_added(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, cuts=[5000], shift_bytes=7)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert file_server.ranges() == ["", "bytes=5000-", ""]


def test_a_part_that_nobody_requested_is_not_the_file(
    file_server: FileServer, tmp_path: Path
) -> None:
    headers = {"Content-Range": f"bytes 100-{len(ROWS) - 1}/{len(ROWS)}"}
    file_server.files["/rows.jsonl"] = Served(ROWS[100:], 206, headers)
    with pytest.raises(DataError, match=r"notebook\.other_part_sent\("):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []


def test_a_file_that_changes_meanwhile_is_never_put_together_of_two(
    file_server: FileServer, tmp_path: Path
) -> None:
    changed = ROWS.replace(b"?", b"!")
    file_server.files["/rows.jsonl"] = Served(
        ROWS, cuts=[5000], is_always_cut=True, has_ranges=False
    )
    with pytest.raises(DataError, match=r"notebook\.partial_download_kept"):
        fetch(web(file_server), tmp_path)
    file_server.files["/rows.jsonl"] = Served(changed, etag='"v2"')
    assert fetch(web(file_server), tmp_path).read_bytes() == changed


def test_two_halves_that_do_not_fit_are_noticed_by_the_hash_and_fetched_afresh(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(
        b"x" * len(ROWS), etag=None, cuts=[5000], is_always_cut=True, has_ranges=False
    )
    with pytest.raises(DataError):
        fetch(web(file_server), tmp_path, HASH)
    file_server.files["/rows.jsonl"] = Served(ROWS, etag=None)
    assert fetch(web(file_server), tmp_path, HASH).read_bytes() == ROWS
    assert file_server.ranges()[-2:] == ["bytes=5000-", ""]


def test_a_server_that_always_breaks_off_gives_nothing(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(
        ROWS, cuts=[1000], is_always_cut=True, has_ranges=False
    )
    with pytest.raises(DataError, match=r"download_failed.*error=peer closed connection"):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []
    assert len(file_server.requests) == HURRIED.num_attempts


def test_a_chunked_answer_that_is_cut_is_noticed(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(
        ROWS, is_chunked=True, etag=None, cuts=[1000], is_always_cut=True
    )
    with pytest.raises(DataError, match=r"notebook\.download_failed\("):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []


def test_a_whole_chunked_answer_is_taken(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, is_chunked=True)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS


def test_an_answer_without_an_end_is_taken_with_its_hash_only(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, ends_by_closing=True)
    with pytest.raises(DataError, match=r"notebook\.file_length_unknown\("):
        fetch(web(file_server), tmp_path)
    assert fetch(web(file_server), tmp_path, HASH).read_bytes() == ROWS


@pytest.mark.parametrize(
    ("status", "message", "num_requests"),
    [
        (404, r"status=404, name=Not Found\), advice=notebook\.check_address\(", 1),
        (403, r"403, name=Forbidden\), advice=notebook\.download_needs_login", 1),
        (429, r"status=429, name=Too Many Requests\)", HURRIED.num_attempts),
        (503, r"status=503, name=Service Unavailable\)", HURRIED.num_attempts),
    ],
)
def test_a_refusal_explains_what_to_do(
    status: int, message: str, num_requests: int, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(b"refused", status)
    with pytest.raises(DataError, match=message):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []
    assert len(file_server.requests) == num_requests


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"download_failed\(.*refused"):
        fetch(WebFile("http://127.0.0.1:9/rows.jsonl", 0.3), tmp_path)


def test_a_silent_server_is_not_waited_for(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, pause_seconds=600)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"download_failed\(.*timed out"):
        fetch(web(file_server, patience=IMPATIENT), tmp_path, patience=IMPATIENT)
    assert time.monotonic() - began < 60


def test_a_trickle_is_not_waited_for(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, pause_seconds=0.05, piece_bytes=5)
    began = time.monotonic()
    with pytest.raises(
        DataError, match=r"download_failed\(.*transfer_slow\(size=[\d,]+ B, duration=\d[\d.]* s"
    ):
        fetch(web(file_server, patience=TRICKLED), tmp_path, patience=TRICKLED)
    assert time.monotonic() - began < 60  # all of it would take minutes


def test_the_time_is_bounded_and_the_next_call_goes_on(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is over once the first bytes have come."""
    file_server.files["/rows.jsonl"] = Served(ROWS, holds_at=10_000)
    remote = WebFile(f"{file_server.url}/rows.jsonl", 60)

    def now() -> float:
        parts = [path for path in tmp_path.rglob("*") if path.is_file()]
        return 2.0 if any(path.stat().st_size for path in parts) else 0.0

    with monkeypatch.context() as patch:
        clock = SimpleNamespace(monotonic=now, sleep=time.sleep)
        patch.setattr(transfer, "time", clock)
        with pytest.raises(
            DataError,
            match=r"download_too_slow\(.*duration=1\.5 s, kept=notebook\.partial_download_kept",
        ):
            fetch_file(remote, None, tmp_path, 1.5)
    assert visible(tmp_path) == []
    file_server.files["/rows.jsonl"] = Served(ROWS)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert int(file_server.ranges()[-1].removeprefix("bytes=").removesuffix("-")) > 0


def test_a_killed_process_goes_on_where_it_was(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, holds_at=len(ROWS) - 1000)
    code = "import colab, sys; colab.fetch_dataset(sys.argv[1], folder=sys.argv[2])"
    command = [sys.executable, "-c", code, f"{file_server.url}/rows.jsonl", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not any(part.stat().st_size for part in parts(tmp_path)):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    file_server.files["/rows.jsonl"] = Served(ROWS)
    assert visible(tmp_path) == []
    assert (
        colab.fetch_dataset(f"{file_server.url}/rows.jsonl", folder=tmp_path).read_bytes() == ROWS
    )
    assert file_server.ranges()[-1] != ""


@pytest.mark.parametrize(("boot", "wanted"), [("first", "bytes=5000-"), ("second", "")])
def test_after_another_start_of_the_machine_nothing_is_gone_on_with(
    boot: str, wanted: str, file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may leave zeros where the end of a file was."""
    monkeypatch.setattr(transfer, "BOOT_ID", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("first")
    file_server.files["/rows.jsonl"] = Served(
        ROWS, cuts=[5000], is_always_cut=True, has_ranges=False
    )
    with pytest.raises(DataError, match=r"notebook\.partial_download_kept"):
        fetch(web(file_server), tmp_path)
    file_server.files["/rows.jsonl"] = Served(ROWS)
    (tmp_path / "boot_id").write_text(boot)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert file_server.ranges()[-1] == wanted


def test_free_space_is_checked_before_the_first_byte(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    free = transfer.SPARE_BYTES + len(ROWS) - 1
    monkeypatch.setattr(transfer, "disk_free_bytes", lambda folder: free)
    with pytest.raises(StorageError, match=r"notebook\.not_enough_space\("):
        fetch(web(file_server), tmp_path)
    assert sum(part.stat().st_size for part in parts(tmp_path)) == 0
    monkeypatch.setattr(transfer, "disk_free_bytes", lambda folder: free + 1)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS


def test_a_file_of_unknown_length_stops_before_the_disk_is_full(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, is_chunked=True)
    monkeypatch.setattr(transfer, "LOOK_BYTES", 4000)
    monkeypatch.setattr(
        transfer,
        "disk_free_bytes",
        lambda folder: transfer.SPARE_BYTES + 8000 - sum(p.stat().st_size for p in parts(folder)),
    )
    with pytest.raises(StorageError):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []
