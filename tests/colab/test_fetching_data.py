"""What a person calls the data, and the path that can be trained on."""

import gzip
import io
import logging
import lzma
import os
import pickle
import re
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import colab
from colab import data_shelf
from infrastructure.core.errors import DataError
from infrastructure.data.readers.sources import discover
from tests.colab.fetching import HASH, ROWS, fetch, parts, visible, web
from tests.colab.file_server import LOGIN_PAGE, FileServer, Served


def test_a_file_from_the_web_is_there_and_the_second_call_requests_nothing(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file_server.files["/data/rows.jsonl"] = Served(ROWS)
    path = colab.fetch_dataset(f"{file_server.url}/data/rows.jsonl")
    assert path.read_bytes() == ROWS
    assert path.is_relative_to(tmp_path / ".cache" / "temper" / "data")
    assert path.name == "rows.jsonl"
    assert len(file_server.requests) == 1
    assert colab.fetch_dataset(f"{file_server.url}/data/rows.jsonl") == path
    assert colab.fetch_dataset(f"{file_server.url}/data/rows.jsonl", sha256=HASH.upper()) == path
    assert len(file_server.requests) == 1


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
    ("given_name", "name"),
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
    given_name: str, name: str, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/get"] = Served(ROWS, headers={"Content-Disposition": given_name})
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


def test_a_wrong_hash_leaves_nothing_and_does_not_stand_in_the_way(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    with pytest.raises(DataError, match=f"hash_differs.*actual={HASH}, expected={'0' * 64}"):
        fetch(web(file_server), tmp_path, "0" * 64)
    assert visible(tmp_path) == []
    assert parts(tmp_path) == []
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return made.getvalue()


NO_DATA = {
    "kind_web_page": b"\n <!DOCTYPE html><html><body>Please log in</body></html>",
    "kind_empty": b"",
    "kind_lfs_pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
}


@pytest.mark.parametrize("what", NO_DATA)
def test_what_is_no_data_is_refused_though_the_server_answers_200(
    what: str, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(NO_DATA[what])
    with pytest.raises(
        DataError, match=rf"data\.path_is_not_data\(path=rows\.jsonl, kind=data\.{what}\(\), "
    ):
        fetch(web(file_server), tmp_path)
    assert visible(tmp_path) == []
    assert parts(tmp_path) == []


ARCHIVES = {
    "kind_zip": zipped({"rows.jsonl": ROWS}),
    "kind_word": zipped({"word/document.xml": b"<w:document/>"}),
    "kind_empty_zip": zipped({}),
    "kind_tar": tarred({"rows.jsonl": ROWS}),
    "kind_gzip": gzip.compress(ROWS),
    "kind_xz": lzma.compress(ROWS),
    "kind_pdf": b"%PDF-1.7\n1 0 obj\n",
    "kind_image": b"\x89PNG\r\n\x1a\n" + bytes(9),
    "kind_pickle": pickle.dumps(["rows"], protocol=3),
    "kind_binary": bytes(range(1, 9)) * 9 + bytes(9),
}


def test_a_zip_archive_with_one_data_file_is_data(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.zip"] = Served(ARCHIVES["kind_zip"])
    path = fetch(web(file_server, "/rows.zip"), tmp_path)
    [file] = discover(str(path))
    assert file.format == "jsonl"


NAMES = ["/rows.jsonl", "/rows.zip", "/rows"]
NOT_READ = [(w, n) for w in ARCHIVES for n in NAMES if (w, n) != ("kind_zip", "/rows.zip")]


def not_data(path: str, what: str) -> str:
    codes = r"data\.(path_is_not_data|document_not_data)"
    return rf"{codes}\(path={re.escape(path)}, (kind|what)=data\.{what}\(\)[,)]"


@pytest.mark.parametrize(("what", "name"), NOT_READ)
def test_an_archive_or_a_document_is_no_data(
    what: str, name: str, file_server: FileServer, tmp_path: Path
) -> None:
    """Whatever it is called; by its hash a person says that it is the file that was meant."""
    file_server.files[name] = Served(ARCHIVES[what])
    with pytest.raises(DataError, match=not_data(name[1:], what)):
        fetch(web(file_server, name), tmp_path)
    assert visible(tmp_path) == []
    local = tmp_path / "here" / name[1:]
    local.parent.mkdir()
    local.write_bytes(ARCHIVES[what])
    with pytest.raises(DataError, match=not_data(local.name, what)):
        colab.fetch_dataset(local)
    with pytest.raises(ValueError):
        list(discover(str(local))[0].rows())


def test_a_file_that_is_called_gz_and_is_none_is_refused(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl.gz"] = Served(ROWS)
    with pytest.raises(DataError, match=r"data\.compressed_file_damaged.*kind=gzip"):
        fetch(web(file_server, "/rows.jsonl.gz"), tmp_path)
    assert visible(tmp_path) == []


def test_what_a_person_changed_is_never_written_over(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    path = fetch(web(file_server), tmp_path)
    path.write_bytes(b"my own rows")
    for wanted in (None, HASH, "0" * 64):
        with pytest.raises(ValueError, match=r"notebook\.fetched_file_changed\("):
            fetch(web(file_server), tmp_path, wanted)
    assert path.read_bytes() == b"my own rows"
    path.unlink()
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS


def test_a_touched_file_is_no_changed_file(file_server: FileServer, tmp_path: Path) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    os.utime(fetch(web(file_server), tmp_path), (0, 0))
    fetch(web(file_server), tmp_path)
    assert len(file_server.requests) == 1


def test_another_file_of_that_name_is_never_written_over(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)
    (tmp_path / "rows.jsonl").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"notebook\.name_is_taken\("):
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


def test_a_process_killed_right_after_that_is_made_up_for(
    file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS)

    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killing:
        killing.setattr(data_shelf, "sync_directory", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch(web(file_server), tmp_path)
    assert fetch(web(file_server), tmp_path).read_bytes() == ROWS
    assert len(file_server.requests) == 1


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
    assert len(file_server.requests) == 1


def test_a_folder_that_cannot_be_written_is_reported(
    file_server: FileServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"notebook\.folder_not_writable\("):
        fetch(web(file_server), tmp_path / "file" / "folder")


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
    output = ""
    try:
        colab.fetch_dataset(address, folder=tmp_path)
    except DataError as error:
        output = str(error)
    assert ("404" in output) is (status == 404)
    assert file_server.requests[0][0].endswith("signature=plain-signature")
    captured = capsys.readouterr()
    written = [p.read_text() + str(p) for p in tmp_path.rglob("*") if p.is_file()]
    for text in [output, captured.out, captured.err, caplog.text, *written]:
        assert SECRET not in text
        assert "plain-signature" not in text


@pytest.mark.parametrize("wrong", ["abc", "z" * 64, "", HASH + "0"])
def test_a_hash_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"notebook\.not_a_sha256\("):
        colab.fetch_dataset("rows.jsonl", sha256=wrong)


def test_a_file_on_this_machine_is_used_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS)
    assert colab.fetch_dataset(path, sha256=HASH) == path
    assert colab.fetch_dataset(tmp_path) == tmp_path
    assert visible(tmp_path) == ["rows.jsonl"]
    with pytest.raises(DataError, match=r"notebook\.hash_differs\("):
        colab.fetch_dataset(path, sha256="0" * 64)
    with pytest.raises(ValueError, match=r"notebook\.hash_of_no_file\("):
        colab.fetch_dataset(tmp_path, sha256=HASH)
    path.write_bytes(LOGIN_PAGE)
    with pytest.raises(DataError, match=r"kind=data\.kind_web_page"):
        colab.fetch_dataset(path)


@pytest.mark.parametrize(
    "source", ["no/such/file.jsonl", "nothing.jsonl", "", "s3://bucket/rows.jsonl", "ftp://x/y"]
)
def test_what_is_no_source_is_refused_with_what_there_is(source: str) -> None:
    with pytest.raises(ValueError, match=r"known=notebook\.known_sources\("):
        colab.fetch_dataset(source)
