"""Places that fsspec speaks to: its store in memory, and one that is as odd as real ones are."""

import base64
import errno
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from infrastructure.backup.backends import fsspec_place, open_place, require_backend
from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.backends.fsspec_place import FsspecPlace
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import MissingPackageError, StorageError
from tests.faults.store_history import tensors_at

FILE = Path("run-1/objects/ab/abcd")
DATA = b"hello there"
CONTENT = Content.of([DATA])


class OddStore(MemoryFileSystem):
    """Keeps listings as stores do, tells checksums, has directories, and fails as it is told to."""

    protocol = "oddstore"
    cachable = False
    error: Exception | None = None
    info_besides: ClassVar[dict[str, Any]] = {}
    reads = 0
    needs_directories = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def _maybe_fail(self) -> None:
        if OddStore.error is not None:
            raise OddStore.error

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._maybe_fail()
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True, **kwargs)
        found = self.dircache[path]
        return found if detail else [entry["name"] for entry in found]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._maybe_fail()
        return {**super().info(path, **kwargs), **OddStore.info_besides}

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        self._maybe_fail()
        if "r" in mode:
            OddStore.reads += 1
        return super()._open(path, mode, **kwargs)

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        self._maybe_fail()
        parent = self._strip_protocol(path).rpartition("/")[0]
        if OddStore.needs_directories and parent not in self.pseudo_dirs:
            raise FileNotFoundError(parent)
        super().pipe_file(path, value, **kwargs)

    def rm_file(self, path: str) -> None:
        self._maybe_fail()
        super().rm_file(path)


@pytest.fixture(autouse=True)
def empty_stores() -> Iterator[None]:
    fsspec.register_implementation("oddstore", OddStore, clobber=True)
    MemoryFileSystem.store.clear()
    yield
    MemoryFileSystem.store.clear()
    OddStore.store.clear()
    OddStore.error, OddStore.info_besides, OddStore.reads = None, {}, 0
    OddStore.needs_directories = False
    OddStore.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory://backups", "memory://", "oddstore://backups/of/me/"])
def place(request: pytest.FixtureRequest) -> FsspecPlace:
    found = open_place(request.param)
    assert isinstance(found, FsspecPlace)
    return found


def test_what_is_written_can_be_read_and_is_confirmed(place: FsspecPlace) -> None:
    place.write(FILE, [b"hello ", b"there"])
    assert b"".join(place.read(FILE)) == DATA
    assert place.size(FILE) == len(DATA)
    assert place.confirm(FILE, CONTENT)
    assert place.names(FILE.parent) == ["abcd"]
    assert place.names(Path()) == ["run-1"]
    place.remove(FILE)
    with pytest.raises(FileNotFoundError):
        place.size(FILE)
    with pytest.raises(FileNotFoundError):
        list(place.read(FILE))


def test_a_store_in_a_place_is_a_store(place: FsspecPlace) -> None:
    store = Store(Path("run-1"), place, compress=True)
    assert store.versions() == []
    for step in (1, 2, 3):
        store.commit(tensors_at(step), {}, step=step)
    name, rejected = Store(Path("run-1"), open_place(place.url)).newest()
    assert (name, rejected) == (store.versions()[0], [])
    store.remove_all_but(store.versions()[:1])
    assert Store(Path("run-1"), place).newest() == (name, [])


@pytest.mark.parametrize("damage", [b"hello ther", b"hello therf", b""])
def test_other_bytes_are_not_confirmed_and_can_be_replaced(
    place: FsspecPlace, damage: bytes
) -> None:
    place.write(FILE, [damage])
    with pytest.raises(StorageError, match=r"backup\.read_back_(size_)?mismatch.*abcd"):
        place.confirm(FILE, CONTENT)
    place.write(FILE, [DATA])
    assert place.confirm(FILE, CONTENT)


def test_what_is_gone_is_to_be_written_again(place: FsspecPlace) -> None:
    at = re.escape(f"(path={place.url}/{FILE})")
    with pytest.raises(StorageError, match=rf"^backup\.uploaded_file_missing{at}$"):
        place.confirm(FILE, CONTENT)


def test_what_is_large_is_sent_in_parts(
    place: FsspecPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsspec_place, "ONE_REQUEST_BYTES", 100)
    monkeypatch.setattr(OddStore, "pipe_file", None)
    pieces = [bytes([number]) * 60 for number in range(9)]
    place.write(FILE, pieces)
    assert place.confirm(FILE, Content.of(pieces))


@pytest.mark.parametrize(("limit", "is_one_request"), [(12, True), (11, True), (10, False)])
def test_what_fits_into_one_request_is_sent_in_one(
    limit: int, is_one_request: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsspec_place, "ONE_REQUEST_BYTES", limit)
    requests: list[bytes] = []
    pipe_file = OddStore.pipe_file

    def noted(self: OddStore, path: str, value: bytes, **others: Any) -> None:
        requests.append(value)
        pipe_file(self, path, value, **others)

    monkeypatch.setattr(OddStore, "pipe_file", noted)
    place = FsspecPlace("oddstore://backups")
    place.write(FILE, [b"hello ", b"there"])
    assert requests == ([DATA] if is_one_request else [])
    assert b"".join(place.read(FILE)) == DATA


def test_a_listing_is_never_an_old_one() -> None:
    place = FsspecPlace("oddstore://backups")
    place.write(Path("a/1"), [b"x"])
    assert place.names(Path("a")) == ["1"]
    place.write(Path("a/2"), [b"x"])
    assert place.names(Path("a")) == ["1", "2"]


def test_directories_are_made_where_a_store_has_them() -> None:
    OddStore.needs_directories = True
    place = FsspecPlace("oddstore://backups")
    place.write(FILE, [DATA])
    assert place.confirm(FILE, CONTENT)


def test_no_bucket_is_made() -> None:
    OddStore.needs_directories = True
    place = FsspecPlace("oddstore://backups")
    place.scheme = "s3"
    with pytest.raises(FileNotFoundError):
        place.write(FILE, [DATA])


MD5, SHA256 = (hashlib.new(name, DATA, usedforsecurity=False) for name in ("md5", "sha256"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ETag", f'"{MD5.hexdigest()}"'),
        ("etag", MD5.hexdigest().upper()),
        ("md5Hash", base64.b64encode(MD5.digest()).decode()),
        ("md5", MD5.digest()),
        ("sha256", SHA256.hexdigest()),
        ("checksum", base64.b64encode(SHA256.digest()).decode()),
    ],
)
def test_the_servers_own_checksum_is_proof_enough(key: str, value: object) -> None:
    place = FsspecPlace("oddstore://backups")
    place.write(FILE, [DATA])
    OddStore.info_besides = {key: value}
    assert place.confirm(FILE, CONTENT) is Evidence.CHECKSUM
    assert OddStore.reads == 0


@pytest.mark.parametrize(
    "besides",
    [
        {"ETag": f'"{MD5.hexdigest()}-2"'},
        {"ETag": '"0x8D4BCC2E4835CD0"'},
        {"ETag": f'"{"0" * 32}"'},
        {"ETag": None, "md5": 7, "checksum": ["x"]},
        {"ContentMD5": MD5.hexdigest()},
    ],
)
def test_another_checksum_is_neither_proof_nor_damage(besides: dict[str, Any]) -> None:
    place = FsspecPlace("oddstore://backups")
    place.write(FILE, [DATA])
    OddStore.info_besides = besides
    assert place.confirm(FILE, CONTENT) is Evidence.READ_BACK
    assert OddStore.reads == 1
    place.write(FILE, [b"hello therf"])
    with pytest.raises(StorageError, match=r"backup\.read_back_mismatch"):
        place.confirm(FILE, CONTENT)


def test_a_right_checksum_of_a_file_of_another_size_is_not_believed() -> None:
    place = FsspecPlace("oddstore://backups")
    place.write(FILE, [b"hello"])
    OddStore.info_besides = {"ETag": MD5.hexdigest()}
    with pytest.raises(
        StorageError, match=r"backup\.read_back_size_mismatch.*size=5.*expected_size=11"
    ):
        place.confirm(FILE, CONTENT)


class ClientError(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"An error occurred ({code}) at https://me:pa55word@host/?X-Amz-Token=abc")
        self.response = {
            "Error": {"Code": code},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


ODD_ERRORS = [
    ClientError(404, "NoSuchKey"),
    ClientError(403, "AccessDenied"),
    ClientError(503, "SlowDown"),
    RuntimeError("token=hf_AbCdEfGhIjKlMnOpQrStUvWxYz123456 was refused"),
    KeyError("x"),
    ValueError("bad"),
    TimeoutError(),
    ConnectionResetError(errno.ECONNRESET, "reset"),
    EOFError(),
    StopAsyncIteration(),
]


@pytest.mark.parametrize("odd", ODD_ERRORS, ids=lambda error: type(error).__name__)
def test_a_place_raises_errors_of_the_system_without_its_secret(odd: Exception) -> None:
    place = FsspecPlace("oddstore://backups")
    place.write(FILE, [DATA])
    OddStore.error = odd
    for operation in (
        lambda: place.write(FILE, [DATA]),
        lambda: list(place.read(FILE)),
        lambda: place.size(FILE),
        lambda: place.names(FILE.parent),
        lambda: place.remove(FILE),
    ):
        with pytest.raises(OSError) as caught:
            operation()
        assert caught.value.__suppress_context__
        assert "pa55word" not in str(caught.value)
        assert "hf_Ab" not in str(caught.value)
        assert place.advice(caught.value).startswith("backup.")
    with pytest.raises((OSError, StorageError)):
        place.confirm(FILE, CONTENT)


class HalfAFile(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise ConnectionAbortedError("half way")


def test_what_breaks_while_reading_is_an_error_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = FsspecPlace("oddstore://backups")
    place.write(FILE, [DATA])
    monkeypatch.setattr(OddStore, "_open", lambda *_, **__: HalfAFile())
    with pytest.raises(OSError, match="half way") as caught:
        list(place.read(FILE))
    assert caught.value.errno == errno.ENOTCONN


def test_a_store_that_does_not_give_the_size_is_an_error() -> None:
    place = FsspecPlace("oddstore://backups")
    place.write(FILE, [DATA])
    OddStore.info_besides = {"size": None}
    with pytest.raises(OSError, match=r"backup\.store_reports_no_size"):
        place.size(FILE)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://host/x", "backup.destination_not_writable_store(url=https://host/x)"),
        ("github://owner:repo@main/x", "backup.destination_not_writable_store("),
        ("zip://a.zip", "backup.destination_not_writable_store("),
        ("simplecache::s3://bucket/x", "backup.destination_not_writable_store("),
        ("filecache://x", "backup.destination_not_writable_store("),
        ("memory://x::y", "backup.destination_not_writable_store("),
        ("sthree://bucket", "backup.unknown_url_scheme(url=sthree://bucket, "),
        ("://x", "backup.unknown_url_scheme(url=://x, "),
    ],
)
def test_what_cannot_be_a_place_is_refused(url: str, code: str) -> None:
    with pytest.raises(ValueError, match=re.escape(code)):
        open_place(url)


def test_a_missing_package_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    for scheme, line in {
        **dict.fromkeys(("s3", "s3a"), "pip install s3fs"),
        **dict.fromkeys(("gs", "gcs"), "pip install gcsfs"),
        **dict.fromkeys(("az", "abfs", "abfss"), "pip install adlfs"),
        **dict.fromkeys(("sftp", "ssh"), "pip install paramiko"),
        "smb": "backup.install_package_of_scheme(scheme=smb)",
    }.items():
        with pytest.raises(MissingPackageError) as raised:
            open_place(f"{scheme}://bucket/backups")
        values = f"url={scheme}://bucket/backups, hint={line}"
        assert str(raised.value) == f"backup.destination_package_missing({values})"


def test_user_and_password_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def url_to_fs(url: str) -> tuple[OddStore, str]:
        opened.append(url)
        return OddStore(), "/backups"

    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda scheme: OddStore)
    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    url = "sftp://me:pa55word@host/backups?key=s3cr3t"
    place = open_place(url)
    assert opened == [], "nothing is connected to before it is used"
    assert place.url == "sftp://***@host/backups"
    with pytest.raises(StorageError) as caught:
        place.confirm(FILE, CONTENT)
    assert opened == [url]
    assert "pa55" not in str(caught.value)


def test_an_address_that_does_not_answer_is_reported_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def url_to_fs(url: str) -> None:
        raise RuntimeError(f"no route to {url}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda scheme: OddStore)
    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    place = open_place("sftp://me:pa55word@host/backups")
    with pytest.raises(OSError, match="no route") as caught:
        place.identify()
    assert "pa55" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_no_path_leads_out(place: FsspecPlace) -> None:
    for path in (Path("../x"), Path("run/../../x"), Path("/etc/passwd")):
        with pytest.raises(ValueError, match=r"backup\.path_outside_destination"):
            place.write(path, [b"x"])


def test_what_ends_with_the_process_is_reported(tmp_path: Path) -> None:
    for url in ("memory://x", "MEMORY://x"):
        with pytest.raises(ValueError, match=rf"^backup\.destination_in_memory\(url={url}\)$"):
            require_backend(url)
    require_backend("memories")
    assert open_place("oddstore://x").caution(tmp_path) is None
    assert open_place("oddstore://x").free_bytes(Path()) is None


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "advice_check_credentials()"),
        (errno.EPERM, "advice_check_permissions()"),
        (errno.ENOENT, "advice_check_bucket()"),
        (errno.EDQUOT, "advice_quota()"),
        (errno.ENOSPC, "advice_full()"),
        (errno.EAGAIN, "advice_store_busy()"),
        (errno.EFBIG, "advice_file_too_large()"),
        (errno.ENOTCONN, "check_destination_reachable(url=memory://x)"),
    ],
)
def test_every_error_has_a_remedy(number: int, remedy: str) -> None:
    assert open_place("memory://x").advice(OSError(number, "x")) == f"backup.{remedy}"


def test_only_a_store_that_refuses_by_itself_creates(place: FsspecPlace) -> None:
    is_able = place.scheme == "memory"
    assert place.create(FILE, b"one") is (True if is_able else None)
    assert place.create(FILE, b"two") is (False if is_able else None)
    if is_able:
        assert b"".join(place.read(FILE)) == b"one"
    else:
        with pytest.raises(FileNotFoundError):
            place.size(FILE)


def test_a_store_that_refuses_conditions_is_as_one_without_and_one_that_fails_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fsspec_place, "CONDITIONAL", {"oddstore"})
    place = FsspecPlace("oddstore://backups")
    OddStore.error = TypeError("unexpected keyword argument 'mode'")
    assert place.create(FILE, b"x") is None
    OddStore.error = OSError(errno.EBUSY, "503 Slow Down")
    with pytest.raises(OSError, match="Slow Down"):
        place.create(FILE, b"x")
