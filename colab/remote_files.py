"""Remote files on the web, on Google Drive or on a mount, readable from any byte on.

A failure that can be retried raises a ConnectionError. A permanent failure raises a DataError that
says what to do. Only the part of an address that is not secret is ever shown.
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
from infrastructure.core.errors import DataError, InputError
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

# Codes of advice.
PAGE_ADVICE = "notebook.give_file_address"
DRIVE_ADVICE = "notebook.share_drive_file"


class FileChangedError(ConnectionError):
    """An error for a remote file that changed during its transfer."""


@dataclass(frozen=True)
class Opened:
    """A remote file that was opened for reading from byte `start` on.

    Attributes:
        name: the remote name, which may not be safe as a local file name.
        size_bytes: the size of the whole file, or None if unknown.
        version: a text that changes if the content of the file changes, or None if unknown.
        start: the offset at which `chunks` begin; 0 if the file can only be read from its
            beginning.
        end_is_known: whether an interrupted transfer can be distinguished from a complete one.
    """

    name: str
    size_bytes: int | None
    version: str | None
    start: int
    end_is_known: bool
    chunks: Iterator[bytes]


class RemoteFile(abc.ABC):
    """A file on the web, on Google Drive or on a mount.

    Attributes:
        identity: a text that identifies the source; it may contain secrets.
        shown: the name of the source to show to users, without secrets.
        advice: what to do if the source returns a page, or nothing, instead of data.
    """

    identity: str
    shown: str
    advice: str

    @abc.abstractmethod
    def open(self, start: int, version: str | None) -> AbstractContextManager[Opened]:
        """Open the file at byte `start`, or at its beginning if its version is no longer `version`.

        Raises:
            ConnectionError: if the connection breaks, or the source does not respond; also while
                chunks are read.
            DataError: if there is no such file, or no access to it.
        """

    def version_now(self) -> str | None:
        """Return the current version of the file if no request is needed for this;
        otherwise None.
        """
        return None


@functools.cache  # reading the certificates takes as long as many a file
def _trusted() -> ssl.SSLContext:
    return httpx.create_ssl_context()


class WebFile(RemoteFile):
    """The file at an http(s) address.

    Args:
        silence_seconds: the longest time for which the server may send nothing.
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
        # the bytes as they are stored: positions in a compressed stream mean nothing
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
            raise InputError("notebook.not_a_web_address", address=self.shown) from error
        except httpx.HTTPError as error:
            raise ConnectionError(redact(str(error)) or type(error).__name__) from error

    @contextmanager
    def _request(
        self, client: httpx.Client, address: str, start: int, version: str | None
    ) -> Iterator[httpx.Response]:
        """Yield the response from byte `start` on, or from byte 0 if that is not possible."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and version:
            headers["If-Range"] = version  # never append another file's end to this one's beginning
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
        problem = phrase("notebook.server_refuses", file=self.shown, status=int(status), name=name)
        if status in AGAIN or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ConnectionError(problem)
        raise DataError(
            "notebook.download_refused", problem=problem, advice=self._advice_for(status)
        )

    def _advice_for(self, status: int) -> str:
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return phrase("notebook.download_needs_login")
        return phrase("notebook.check_address")


class DriveFile(WebFile):
    """A file that is shared on Google Drive.

    gdown reads the pages that Drive shows before a large file, or instead of it. The transfer is
    Temper's own, because gdown 5 mistakes an error page for the file, has no time limit, and
    appends any response to the bytes that it already has.

    Args:
        file_id: the id in the link.
        resource_key: the key in the links of some old files, or "".
        drive: the address of Drive.
    """

    advice = DRIVE_ADVICE
    user_agent = "Mozilla/5.0 (X11; Linux x86_64)"  # other agents get other pages

    def __init__(
        self, file_id: str, silence_seconds: float, resource_key: str = "", drive: str = DRIVE
    ) -> None:
        key = f"&resourcekey={resource_key}" if resource_key else ""
        super().__init__(f"{drive}/uc?export=download&id={file_id}{key}", silence_seconds)
        self.identity = f"drive {file_id}"
        # Anyone who knows the whole ID can read the file.
        self.shown = phrase("notebook.drive_file", beginning=file_id[:6])

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
        """Yield the file itself, following the pages that Drive may show before it."""
        with self._request(client, address, start, version) as response:
            if not _is_page(response):
                yield response
                return
        if not most_pages:
            raise DataError(
                "notebook.drive_shows_pages", file=self.shown, advice=phrase(self.advice)
            )
        with self._request(client, address, 0, None) as page:  # all of it, not from `start` on
            page.read()
        behind = self._next_address(page.text)
        with self._file(client, behind, start, version, most_pages - 1) as response:
            yield response

    def _next_address(self, page: str) -> str:
        gdown = require("gdown.download", "notebook.shared_drive_files")
        try:
            return str(gdown.get_url_from_gdrive_confirmation(page))
        except gdown.FileURLRetrievalError as error:
            raise DataError(
                "notebook.drive_refuses", file=self.shown, error=error, advice=phrase(self.advice)
            ) from error

    def _advice_for(self, status: int) -> str:
        if status == HTTPStatus.NOT_FOUND:
            return phrase("notebook.check_link", advice=phrase(self.advice))
        return phrase(self.advice)

    def _check(self, status: int) -> None:
        if status == HTTPStatus.TOO_MANY_REQUESTS:  # lasts for hours
            raise DataError(
                "notebook.drive_file_overused", file=self.shown, advice=phrase(self.advice)
            )
        super()._check(status)


class MountedFile(RemoteFile):
    """A file on a mounted Drive.

    Args:
        silence_seconds: the longest time that the mount may take to respond.
    """

    advice = "notebook.look_on_drive"

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
        except (ConnectionError, DataError):  # not mounted; what was fetched before may be used
            return None

    def is_folder(self) -> bool:
        """Return whether the path is a folder; False if the mount does not respond."""
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
            raise FileChangedError(phrase("notebook.file_changed_during_read"))

    def _query(self, question: Callable[[], Answer]) -> Answer:
        """Run a file operation with a time limit, because an unresponsive mount would block."""
        try:
            return within(self.silence_seconds, question)
        except FileNotFoundError as error:
            raise DataError("notebook.drive_path_missing", path=self.path) from error
        except OSError as error:
            folder = drive_folder(self.path) or self.path.parent
            code = ADVICE.get(error.errno or 0, "backup.advice_remount_drive")
            advice = phrase(code, mount=folder.parent)
            raise ConnectionError(f"{error.strerror or error}: {advice}") from error


def opened(response: httpx.Response) -> Opened:
    """Return the description of the file that a server's response provides."""
    headers = response.headers
    part = RANGE.fullmatch(headers.get("Content-Range", ""))
    is_part = response.status_code == HTTPStatus.PARTIAL_CONTENT and part is not None
    start, size = (int(part[1]), int(part[2])) if is_part and part else (0, None)
    is_plain = headers.get("Content-Encoding", "identity") == "identity"
    if size is None and is_plain and "Content-Length" in headers:
        size = int(headers["Content-Length"])
    version = headers.get("ETag", "")
    if not version or version.startswith("W/"):  # a weak one does not guarantee equal bytes
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
    """Return whether a response can be used for a request that begins at byte `start`.

    A response with the whole file can also be used.

    Servers and caches that ignore If-Range may send the end of another version of the file. So the
    version in the response is compared, and the status code is not sufficient.
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
    """Return the server's file name, with an extension from the content type if it has none."""
    message = Message()
    message["Content-Disposition"] = response.headers.get("Content-Disposition", "")
    last_of_address = unquote(response.url.path).rpartition("/")[2]
    name = message.get_filename() or last_of_address
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
    return name if "." in name else name + (mimetypes.guess_extension(kind) or "")


@contextmanager
def _addresses_not_logged() -> Iterator[None]:
    """Keep httpx from logging complete URLs, whose queries may contain secrets."""
    logger = logging.getLogger("httpx")

    def hide(_record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(hide)
    try:
        yield
    finally:
        logger.removeFilter(hide)
