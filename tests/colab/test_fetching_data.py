"""Whatever a server does: what is fetched is there whole, or it is not there."""

import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import colab
from colab import transfer
from colab.fetching_data import fetch_file
from colab.remote_files import DriveFile, WebFile
from colab.transfer import Patience
from infrastructure.core.errors import DataError, StorageError
from infrastructure.training.data.sources import discover
from tests.colab.file_server import (
    LOGIN_PAGE,
    QUOTA_PAGE,
    FileServer,
    Served,
    shared_on_drive,
)

ROWS = b"".join(b'{"prompt": "%d?", "completion": "%d."}\n' % (i, i) for i in range(500))
HASH = hashlib.sha256(ROWS).hexdigest()
FILE_ID = "1aB_cD-eFgHiJkLmNoPqRsTuVwXyZ01234"
HURRIED = Patience(
    silence_seconds=0.3, pace_seconds=0.4, least_bytes=2000, num_attempts=3, first_wait_seconds=0.01
)


def web(file_server: FileServer, path: str = "/rows.jsonl") -> WebFile:
    return WebFile(file_server.url + path, HURRIED.silence_seconds)


def drive(file_server: FileServer) -> DriveFile:
    return DriveFile(FILE_ID, HURRIED.silence_seconds, drive=file_server.url)


def fetch(remote: WebFile, folder: Path, sha256: str | None = None, seconds: float = 60) -> Path:
    return fetch_file(remote, sha256, folder, seconds, HURRIED)


def visible(folder: Path) -> list[str]:
    """What a person, or a training on the folder, would see there."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "part" in path.parts and path.is_file()]


def test_a_file_from_the_web_is_there_and_the_second_call_asks_nobody(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file_server.files["/data/rows.jsonl"] = Served(ROWS)
    path = colab.fetch_dataset(f"{file_server.url}/data/rows.jsonl")
    assert path.read_bytes() == ROWS
    assert path.is_relative_to(tmp_path / ".cache" / "temper" / "data")
    assert path.name == "rows.jsonl"
    assert len(file_server.asked) == 1
    assert colab.fetch_dataset(f"{file_server.url}/data/rows.jsonl") == path
    assert colab.fetch_dataset(f"{file_server.url}/data/rows.jsonl", sha256=HASH.upper()) == path
    assert len(file_server.asked) == 1


def test_what_was_fetched_can_be_trained_on(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, headers={"Content-Type": "text/plain"})
    fetch(web(file_server), tmp_path)
    (file,) = discover(str(tmp_path))
    assert len(list(file.rows())) == 500
    assert parts(tmp_path) == []


def test_a_redirect_is_followed(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    path = fetch(web(file_server, "/redirected?to=/rows.jsonl"), tmp_path)
    assert path == tmp_path / "rows.jsonl"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ('attachment; filename="chats.jsonl"', "chats.jsonl"),
        ("attachment; filename*=UTF-8''gru%C3%9F.jsonl", "gruß.jsonl"),
        ('attachment; filename="../../../etc/rows.jsonl"', "rows.jsonl"),
        ("attachment; filename*=UTF-8''..%2F..%2Frows.jsonl", "rows.jsonl"),
        ('attachment; filename="..\\\\..\\\\rows.jsonl"', "rows.jsonl"),
        ('attachment; filename="/etc/passwd"', "passwd"),
        ('attachment; filename=".bashrc"', "bashrc"),
        ('attachment; filename=".."', "data"),
        ('attachment; filename="a\x01b;c|d.jsonl"', "a_b_c_d.jsonl"),
        (f'attachment; filename="{"x" * 300}.jsonl"', "x" * 104 + ".jsonl"),
    ],
)
def test_a_name_from_elsewhere_stays_in_the_folder(
    told: str, name: str, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/get"] = Served(ROWS, headers={"Content-Disposition": told})
    path = fetch(web(file_server, "/get"), tmp_path / "here")
    assert path == tmp_path / "here" / name
    assert visible(tmp_path) == ["here"]


def test_a_file_without_an_ending_gets_that_of_its_kind(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/export"] = Served(
        b"prompt,completion\na,b\n", headers={"Content-Type": "text/csv"}
    )
    assert fetch(web(file_server, "/export"), tmp_path).name == "export.csv"


@pytest.mark.parametrize("told", [{}, {"Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}])
def test_a_broken_transfer_goes_on_where_it_was(
    told: dict[str, str], file_server: FileServer, tmp_path: Path
) -> None:
    etag = None if told else '"v1"'
    file_server.files["/rows.jsonl"] = Served(ROWS, headers=told, etag=etag, cuts=[5000, 3000])
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert file_server.ranges() == ["", "bytes=5000-", "bytes=8000-"]


def test_a_server_that_knows_no_ranges_is_asked_for_all_again(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, cuts=[5000], has_ranges=False)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert file_server.ranges() == ["", "bytes=5000-"]


def test_what_has_no_version_is_not_gone_on_with(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, cuts=[5000], etag=None)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert file_server.ranges() == ["", ""]


def test_a_file_that_changes_meanwhile_is_never_put_together_of_two(
    file_server: FileServer, tmp_path: Path
) -> None:
    changed = ROWS.replace(b"?", b"!")
    file_server.files["/rows.jsonl"] = Served(
        ROWS, cuts=[5000], is_always_cut=True, has_ranges=False
    )
    with pytest.raises(DataError, match=r"4\.9 KiB are kept, and the same call goes on"):
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
    with pytest.raises(DataError, match="did not come: peer closed connection"):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []
    assert len(file_server.asked) == HURRIED.num_attempts


def test_a_chunked_answer_that_is_cut_is_noticed(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(
        ROWS, is_chunked=True, etag=None, cuts=[1000], is_always_cut=True
    )
    with pytest.raises(DataError, match="did not come"):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []


def test_a_whole_chunked_answer_is_taken(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, is_chunked=True)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS


def test_an_answer_without_an_end_is_taken_with_its_hash_only(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, ends_by_closing=True)
    with pytest.raises(DataError, match="does not say how long the file is"):
        fetch(web(file_server), tmp_path)
    assert fetch(web(file_server), tmp_path, HASH).read_bytes() == ROWS


def test_a_wrong_hash_leaves_nothing_and_does_not_stand_in_the_way(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    with pytest.raises(DataError, match=f"has the SHA-256 {HASH}, not the {'0' * 64}"):
        fetch(web(file_server), tmp_path, "0" * 64)
    assert visible(tmp_path) == []
    assert parts(tmp_path) == []
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS


NO_DATA = {
    "a web page": b"\n <!DOCTYPE html><html><body>Please log in</body></html>",
    "empty": b"",
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
}


@pytest.mark.parametrize("what", NO_DATA)
def test_what_is_no_data_is_refused_though_the_server_says_200(
    what: str, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(NO_DATA[what])
    with pytest.raises(DataError, match=f"is no data, it is {what}: .*on GitHub /raw/"):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []
    assert parts(tmp_path) == []


def test_a_file_that_is_called_gz_and_is_none_is_refused(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl.gz"] = Served(ROWS)
    with pytest.raises(DataError, match="no whole gzip file"):
        fetch(web(file_server, "/rows.jsonl.gz"), tmp_path)
    assert visible(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "told", "num_asked"),
    [
        (404, r"404 \(Not Found\): check the address", 1),
        (403, r"403 \(Forbidden\): it wants to know who asks", 1),
        (503, r"503 \(Service Unavailable\)", HURRIED.num_attempts),
    ],
)
def test_a_refusal_says_what_to_do(
    status: int, told: str, num_asked: int, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(b"refused", status)
    with pytest.raises(DataError, match=told):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []
    assert len(file_server.asked) == num_asked


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"did not come: .*refused"):
        fetch(WebFile("http://127.0.0.1:9/rows.jsonl", 0.3), tmp_path)


def test_a_silent_server_is_not_waited_for(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, pause_seconds=60)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"did not come: .*timed out"):
        fetch(web(file_server), tmp_path)
    assert time.monotonic() - began < 5


def test_a_trickle_is_not_waited_for(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, pause_seconds=0.05, piece_bytes=5)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"did not come: only \d+ B came in 0.\d s"):
        fetch(web(file_server), tmp_path)
    assert time.monotonic() - began < 10


def test_the_time_is_bounded_and_the_next_call_goes_on(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, pause_seconds=0.05)
    with pytest.raises(DataError, match=r"did not come within 0\.3 s; .* are kept"):
        fetch(web(file_server), tmp_path, seconds=0.3)
    assert visible(tmp_path) == []
    file_server.files["/rows.jsonl"].pause_seconds = 0
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert int(file_server.ranges()[-1].removeprefix("bytes=").removesuffix("-")) > 0


def test_a_killed_process_goes_on_where_it_was(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, pause_seconds=0.05)
    code = "import colab, sys; colab.fetch_dataset(sys.argv[1], folder=sys.argv[2])"
    command = [sys.executable, "-c", code, f"{file_server.url}/rows.jsonl", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not any(part.stat().st_size for part in parts(tmp_path)):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    file_server.files["/rows.jsonl"].pause_seconds = 0
    assert visible(tmp_path) == []
    assert (
        colab.fetch_dataset(f"{file_server.url}/rows.jsonl", folder=tmp_path).read_bytes() == ROWS
    )
    assert file_server.ranges()[-1] != ""


def test_after_another_start_of_the_machine_nothing_is_gone_on_with(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may leave zeros where the end of a file was."""
    file_server.files["/rows.jsonl"] = Served(ROWS, cuts=[5000], is_always_cut=True)
    with pytest.raises(DataError, match="kept"):
        fetch(web(file_server), tmp_path, seconds=0.005)
    file_server.files["/rows.jsonl"] = Served(ROWS)
    boot = tmp_path / "boot_id"
    boot.write_text("another")
    monkeypatch.setattr(transfer, "BOOT_ID", boot)
    assert fetch(web(file_server), tmp_path / "x").read_bytes() == ROWS
    assert file_server.ranges()[-1] == ""


def test_the_disk_is_asked_before_the_first_byte(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    free = transfer.ROOM_LEFT_BYTES + len(ROWS) - 1
    monkeypatch.setattr(transfer, "disk_free_bytes", lambda folder: free)
    with pytest.raises(StorageError, match="make room, or give another folder"):
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
        lambda folder: (
            transfer.ROOM_LEFT_BYTES + 8000 - sum(p.stat().st_size for p in parts(folder))
        ),
    )
    with pytest.raises(StorageError):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []


def test_what_a_person_changed_is_never_written_over(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    path = fetch(web(file_server), tmp_path)
    path.write_bytes(b"my own rows")
    for wanted in (None, HASH, "0" * 64):
        with pytest.raises(ValueError, match="was changed since it was fetched"):
            fetch(web(file_server), tmp_path, wanted)
    assert path.read_bytes() == b"my own rows"
    path.unlink()
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS


def test_a_touched_file_is_no_changed_file(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    os.utime(fetch(web(file_server), tmp_path), (0, 0))
    fetch(web(file_server), tmp_path)
    assert len(file_server.asked) == 1


def test_another_file_of_that_name_is_never_written_over(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    (tmp_path / "rows.jsonl").write_bytes(b"something else")
    with pytest.raises(ValueError, match="is something else: move it away, or give another folder"):
        fetch(web(file_server), tmp_path)
    assert (tmp_path / "rows.jsonl").read_bytes() == b"something else"


def test_a_new_hash_fetches_what_its_owner_changed(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(b"older rows")
    fetch(web(file_server), tmp_path)
    file_server.files["/rows.jsonl"] = Served(ROWS, etag='"v2"')
    assert fetch(web(file_server), tmp_path, HASH).read_bytes() == ROWS


def test_a_process_killed_while_it_puts_a_file_in_its_place_is_made_up_for(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_server.files["/rows.jsonl"] = Served(b"older rows")
    fetch(web(file_server), tmp_path)
    file_server.files["/rows.jsonl"] = Served(ROWS, etag='"v2"')
    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", interrupt_at(tmp_path / "rows.jsonl", Path.replace))
        with pytest.raises(KeyboardInterrupt):
            fetch(web(file_server), tmp_path, HASH)
    assert fetch(web(file_server), tmp_path, HASH).read_bytes() == ROWS


def interrupt_at(target: Path, original: Callable[[Path, Path], Path]) -> Callable[..., Path]:
    def replace(self: Path, to: Path) -> Path:
        if to == target:
            raise KeyboardInterrupt
        return original(self, to)

    return replace


def test_two_processes_fetch_once(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, pause_seconds=0.02)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch(web(file_server), tmp_path)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "rows.jsonl"] * 3
    assert len(file_server.asked) == 1


def test_a_folder_that_cannot_be_written_is_told(file_server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written to .*: give another folder"):
        fetch(web(file_server), tmp_path / "file" / "folder")


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
    ("page", "status", "told"),
    [
        (QUOTA_PAGE, 200, "Drive refuses: Too many users have viewed .* wait up to 24 h"),
        (
            LOGIN_PAGE,
            200,
            "Drive refuses: Cannot retrieve the public link .*'Anyone with the link'",
        ),
        (b"<html>Not Found</html>", 404, r"404 \(Not Found\): check the link; share the file"),
        (b"<html>Sorry</html>", 403, r"403 \(Forbidden\): share the file"),
        (b"<html>Sorry</html>", 429, "too many have fetched it: share .* wait up to 24 h"),
        (b"<html>Error</html>", 500, r"500 \(Internal Server Error\)"),
    ],
)
def test_a_page_of_drive_is_never_taken_for_data(
    page: bytes, status: int, told: str, file_server: FileServer, tmp_path: Path
) -> None:
    html = {"Content-Type": "text/html; charset=utf-8"}
    file_server.files[f"/uc?id={FILE_ID}"] = Served(page, status, html)
    with pytest.raises(DataError, match=told) as raised:
        fetch(drive(file_server), tmp_path)
    assert visible(tmp_path) == []
    assert FILE_ID not in str(raised.value)


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        (Served(ROWS, cuts=[1000], is_always_cut=True, has_ranges=False), "did not come: peer"),
        (Served(ROWS, pause_seconds=60), "did not come: .*timed out"),
        (Served(ROWS, pause_seconds=0.05, piece_bytes=5), "did not come: only"),
        (Served(b"<html><body>Sorry</body></html>"), "is no data, it is a web page: share"),
        (Served(ROWS.replace(b"?", b"!")), "has the SHA-256"),
    ],
    ids=["truncated", "silent", "slow", "page", "hash"],
)
def test_what_drive_spoils_is_never_taken_for_data(
    spoilt: Served, told: str, file_server: FileServer, tmp_path: Path
) -> None:
    shared_on_drive(file_server, FILE_ID, spoilt, "chats.jsonl")
    wanted = HASH if "SHA" in told else None
    with pytest.raises(DataError, match=told):
        fetch(drive(file_server), tmp_path, wanted)
    assert visible(tmp_path) == []


def test_drive_that_shows_page_after_page_is_left(file_server: FileServer, tmp_path: Path) -> None:
    shared_on_drive(file_server, FILE_ID, Served(ROWS), "chats.jsonl")
    file_server.files[f"/download?id={FILE_ID}"] = file_server.files[f"/uc?id={FILE_ID}"]
    with pytest.raises(DataError, match="shows page after page"):
        fetch(drive(file_server), tmp_path)


SECRET = "hf_" + "Zx9" * 11


@pytest.mark.parametrize("status", [200, 404])
def test_a_secret_in_an_address_is_found_nowhere(
    status: int,
    file_server: FileServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    file_server.files["/rows.jsonl"] = Served(ROWS, status)
    host = file_server.url.removeprefix("http://")
    address = f"http://me:{SECRET}@{host}/rows.jsonl?token={SECRET}&signature=plain-signature"
    told = ""
    try:
        colab.fetch_dataset(address, folder=tmp_path)
    except DataError as error:
        told = str(error)
    assert ("404" in told) is (status == 404)
    assert file_server.asked[0][0].endswith("signature=plain-signature")
    said = capsys.readouterr()
    written = [p.read_text() + str(p) for p in tmp_path.rglob("*") if p.is_file()]
    for text in [told, said.out, said.err, caplog.text, *written]:
        assert SECRET not in text
        assert "plain-signature" not in text


@pytest.mark.parametrize("wrong", ["abc", "z" * 64, "", HASH + "0"])
def test_a_hash_that_is_none_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sha256 is 64 hex digits"):
        colab.fetch_dataset("rows.jsonl", sha256=wrong)


def test_a_file_on_this_machine_is_used_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS)
    assert colab.fetch_dataset(path, sha256=HASH) == path
    assert colab.fetch_dataset(tmp_path) == tmp_path
    assert visible(tmp_path) == ["rows.jsonl"]
    with pytest.raises(DataError, match="SHA-256"):
        colab.fetch_dataset(path, sha256="0" * 64)
    with pytest.raises(ValueError, match="leave it out"):
        colab.fetch_dataset(tmp_path, sha256=HASH)
    path.write_bytes(LOGIN_PAGE)
    with pytest.raises(DataError, match="a web page"):
        colab.fetch_dataset(path)


@pytest.mark.parametrize(
    "source", ["no/such/file.jsonl", "nothing.jsonl", "", "s3://bucket/rows.jsonl", "ftp://x/y"]
)
def test_what_is_no_source_is_refused_with_what_there_is(source: str) -> None:
    with pytest.raises(ValueError, match="give a path, an http"):
        colab.fetch_dataset(source)


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
    assert colab.fetch_dataset(mounted, folder=local).read_bytes() == ROWS + ROWS
    mounted.unlink()
    assert colab.fetch_dataset(mounted, folder=local) == path
    path.unlink()
    with pytest.raises(DataError, match=r"mount Drive first: colab\.mount_drive\(\)"):
        colab.fetch_dataset(mounted, folder=local)


def test_a_folder_on_a_mounted_drive_is_used_where_it_lies(tmp_path: Path) -> None:
    folder = tmp_path / "MyDrive" / "data"
    folder.mkdir(parents=True)
    assert colab.fetch_dataset(folder) == folder
