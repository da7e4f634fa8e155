"""Files elsewhere that can be read from any byte on: on the web, shared on Google Drive, mounted.

What breaks off and may be asked for again is a ConnectionError; what will not get better is a
DataError that says what to do. Of an address only what is no secret is ever shown.
"""

import abc
import functools
import logging
import mimetypes
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import httpx

from infrastructure.backup.backends.drive import ADVICE, drive_folder
from infrastructure.core.errors import DataError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.core.redact import public_address, redact
from infrastructure.core.waiting import within

Answer = TypeVar("Answer")

CHUNK_BYTES = 1 << 20
DRIVE = "https://drive.google.com"
MOST_PAGES = 3  # that Drive shows before a file
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
AGAIN = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)

PAGE_ADVICE = (
    "give the address of the file itself (on GitHub /raw/ instead of /blob/, on the Hugging Face"
    " Hub /resolve/), or download it in your browser and give its path"
)
DRIVE_ADVICE = (
    "share the file with 'Anyone with the link'; where too many have fetched it, wait up to 24 h,"
    " or make a copy in your own Drive, mount that and give the copy's path"
)


class FileChangedError(ConnectionError):
    """What has come so far is of another version than what would come next."""


@dataclass(frozen=True)
class Opened:
    """A file elsewhere, from byte `start` on.

    Attributes:
        name: what it is called there; not fit for a path yet.
        size_bytes: of the whole file; None: nobody says.
        version: the same as long as the bytes are the same; None: there is no telling.
        start: where `chunks` begin; 0 where the file cannot be read from another byte on.
        end_is_known: whether a transfer that broke off differs from one that is done.
    """

    name: str
    size_bytes: int | None
    version: str | None
    start: int
    end_is_known: bool
    chunks: Iterator[bytes]


class RemoteFile(abc.ABC):
    """A file that is read from elsewhere.

    Attributes:
        identity: the same for the same source; may hold secrets.
        shown: for people.
        advice: what to do when it gives a page, or nothing, instead of data.
    """

    identity: str
    shown: str
    advice: str

    @abc.abstractmethod
    def open(self, start: int, version: str | None) -> AbstractContextManager[Opened]:
        """The file from byte `start` on, if its version is still `version`; else from the first.

        Raises:
            ConnectionError: it broke off, or does not answer; also while chunks are taken.
            DataError: there is no such file, or not for us.
        """

    def version_now(self) -> str | None:
        """The version, where telling it takes no time; None: elsewhere."""
        return None


@functools.cache  # to read the certificates takes as long as many a file
def _trusted() -> ssl.SSLContext:
    return httpx.create_ssl_context()


class WebFile(RemoteFile):
    """What an http(s) address gives.

    Args:
        silence_seconds: how long the server may say nothing.
    """

    advice = PAGE_ADVICE
    user_agent = "temper"

    def __init__(self, address: str, silence_seconds: float) -> None:
        self.address = self.identity = address
        self.shown = public_address(address)
        self.silence_seconds = silence_seconds

    @contextmanager
    def open(self, start: int, version: str | None) -> Iterator[Opened]:
        with (
            self._client() as client,
            self._request(client, self.address, start, version) as response,
        ):
            yield opened(response)

    @contextmanager
    def _client(self) -> Iterator[httpx.Client]:
        # bytes as they lie there: positions in a compressed stream mean nothing
        headers = {"User-Agent": self.user_agent, "Accept-Encoding": "identity"}
        try:
            with (
                _addresses_not_logged(),
                httpx.Client(
                    headers=headers,
                    timeout=self.silence_seconds,
                    follow_redirects=True,
                    verify=_trusted(),
                ) as client,
            ):
                yield client
        except httpx.InvalidURL as error:
            raise ValueError(f"{self.shown} is no web address: check it") from error
        except httpx.HTTPError as error:
            raise ConnectionError(redact(str(error)) or type(error).__name__) from error

    @contextmanager
    def _request(
        self, client: httpx.Client, address: str, start: int, version: str | None
    ) -> Iterator[httpx.Response]:
        """The answer from byte `start` on; from the first where the server gives no other."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and version:
            headers["If-Range"] = version  # never another file's end behind this one's beginning
        with client.stream("GET", address, headers=headers) as response:
            if not start or _continues(response, start, version):
                self._check(response.status_code)
                yield response
                return
        with self._request(client, address, 0, None) as response:
            yield response

    def _check(self, status: int) -> None:
        if status == HTTPStatus.OK or status == HTTPStatus.PARTIAL_CONTENT:
            return
        name = HTTPStatus(status).phrase if status in [*HTTPStatus] else "?"
        problem = f"{self.shown}: the server answers {status} ({name})"
        if status in AGAIN or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ConnectionError(problem)
        raise DataError(f"{problem}: {self._advice_for(status)}")

    def _advice_for(self, status: int) -> str:
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return phrase("notebook.download_needs_login")
        return "check the address"


class DriveFile(WebFile):
    """A file that is shared on Google Drive.

    gdown reads the pages that Drive shows before a large file, and those that it shows instead of
    one; the transfer is ours, since gdown 5 takes an error page for the file, waits for ever, and
    puts whatever comes behind what it had.

    Args:
        file_id: as in the link.
        resource_key: as in the links of some old files, or "".
        drive: the address of Drive.
    """

    advice = DRIVE_ADVICE
    user_agent = "Mozilla/5.0 (X11; Linux x86_64)"  # others are shown other pages

    def __init__(
        self, file_id: str, silence_seconds: float, resource_key: str = "", drive: str = DRIVE
    ) -> None:
        key = f"&resourcekey={resource_key}" if resource_key else ""
        super().__init__(f"{drive}/uc?export=download&id={file_id}{key}", silence_seconds)
        self.identity = f"drive {file_id}"
        self.shown = f"the Drive file {file_id[:6]}…"  # who knows the rest may read the file

    @contextmanager
    def open(self, start: int, version: str | None) -> Iterator[Opened]:
        with (
            self._client() as client,
            self._file(client, self.address, start, version, MOST_PAGES) as response,
        ):
            yield opened(response)

    @contextmanager
    def _file(
        self, client: httpx.Client, address: str, start: int, version: str | None, most_pages: int
    ) -> Iterator[httpx.Response]:
        """The file itself, behind the pages before it."""
        with self._request(client, address, start, version) as response:
            if not _is_page(response):
                yield response
                return
        if not most_pages:
            raise DataError(f"{self.shown}: Drive shows page after page: {self.advice}")
        with self._request(client, address, 0, None) as page:  # all of it, not from `start` on
            page.read()
        behind = self._next_address(page.text)
        with self._file(client, behind, start, version, most_pages - 1) as response:
            yield response

    def _next_address(self, page: str) -> str:
        gdown = require("gdown.download", "files shared on Google Drive")
        try:
            return str(gdown.get_url_from_gdrive_confirmation(page))
        except gdown.FileURLRetrievalError as error:
            raise DataError(f"{self.shown}: Drive refuses: {error} To do: {self.advice}") from error

    def _advice_for(self, status: int) -> str:
        if status == HTTPStatus.NOT_FOUND:
            return "check the link; " + self.advice
        return self.advice

    def _check(self, status: int) -> None:
        if status == HTTPStatus.TOO_MANY_REQUESTS:  # lasts for hours
            raise DataError(f"{self.shown}: too many have fetched it: {self.advice}")
        super()._check(status)


class MountedFile(RemoteFile):
    """A file on a mounted Drive.

    Args:
        silence_seconds: how long the mount may take to answer.
    """

    advice = "look at it on drive.google.com"

    def __init__(self, path: Path, silence_seconds: float) -> None:
        self.path = path
        self.identity = self.shown = str(path)
        self.silence_seconds = silence_seconds

    @contextmanager
    def open(self, start: int, version: str | None) -> Iterator[Opened]:
        current = self._version()
        size_bytes = int(current.partition(" ")[0])
        start = start if version == current and start <= size_bytes else 0
        chunks = self._chunks(start, current)
        yield Opened(self.path.name, size_bytes, current, start, end_is_known=True, chunks=chunks)

    def version_now(self) -> str | None:
        try:
            return self._version()
        except (ConnectionError, DataError):  # not mounted; what was fetched before may serve
            return None

    def is_folder(self) -> bool:
        """Whether it is no file, as far as the mount says."""
        try:
            return self._query(self.path.is_dir)
        except (ConnectionError, DataError):
            return False

    def _version(self) -> str:
        status = self._query(self.path.stat)
        return f"{status.st_size} {status.st_mtime_ns}"

    def _chunks(self, start: int, version: str) -> Iterator[bytes]:
        with self._query(lambda: self.path.open("rb", buffering=0)) as file:
            file.seek(start)
            while chunk := self._query(lambda: file.read(CHUNK_BYTES)):
                yield chunk
        if self._version() != version:
            raise FileChangedError("it was changed while it was read")

    def _query(self, question: Callable[[], Answer]) -> Answer:
        """What the mount says; a dead one says nothing, for ever."""
        try:
            return within(self.silence_seconds, question)
        except FileNotFoundError as error:
            raise DataError(
                f"{self.path} is not there: check its name, and mount Drive first:"
                " colab.mount_drive()"
            ) from error
        except OSError as error:
            folder = drive_folder(self.path) or self.path.parent
            advice = ADVICE.get(error.errno or 0, "mount Drive again").format(mount=folder.parent)
            raise ConnectionError(f"{error.strerror or error}: {advice}") from error


def opened(response: httpx.Response) -> Opened:
    """What a server's answer gives."""
    headers = response.headers
    part = RANGE.fullmatch(headers.get("Content-Range", ""))
    is_part = response.status_code == HTTPStatus.PARTIAL_CONTENT and part is not None
    start, size = (int(part[1]), int(part[2])) if is_part and part else (0, None)
    is_plain = headers.get("Content-Encoding", "identity") == "identity"
    if size is None and is_plain and "Content-Length" in headers:
        size = int(headers["Content-Length"])
    version = headers.get("ETag", "")
    if not version or version.startswith("W/"):  # a weak one is no promise of equal bytes
        version = headers.get("Last-Modified")
    return Opened(
        name=_name(response),
        size_bytes=size,
        version=version if is_plain else None,
        start=start,
        end_is_known="Content-Length" in headers
        or "chunked" in headers.get("Transfer-Encoding", ""),
        chunks=response.iter_bytes(),
    )


def _continues(response: httpx.Response, start: int, version: str | None) -> bool:
    """Whether an answer to a question for a part may be used; all of the file may be, too. Servers
    and caches that ignore If-Range send the end of another version: theirs decides, not the code.
    """
    if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return False
    if response.status_code != HTTPStatus.PARTIAL_CONTENT:
        return True
    if RANGE.fullmatch(response.headers.get("Content-Range", "")) is None:
        return False
    part = opened(response)
    is_plain = response.headers.get("Content-Encoding", "identity") == "identity"
    return part.start == start and is_plain and version in (None, part.version)


def _is_page(response: httpx.Response) -> bool:
    headers = response.headers
    is_html = headers.get("Content-Type", "").startswith("text/html")
    return is_html and "Content-Disposition" not in headers


def _name(response: httpx.Response) -> str:
    """What the server calls the file; one without an ending gets that of its kind."""
    message = Message()
    message["Content-Disposition"] = response.headers.get("Content-Disposition", "")
    last_of_address = unquote(response.url.path).rpartition("/")[2]
    name = message.get_filename() or last_of_address
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
    return name if "." in name else name + (mimetypes.guess_extension(kind) or "")


@contextmanager
def _addresses_not_logged() -> Iterator[None]:
    """httpx logs whole addresses, whose queries may be secrets."""
    logger = logging.getLogger("httpx")

    def hide(_record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(hide)
    try:
        yield
    finally:
        logger.removeFilter(hide)
