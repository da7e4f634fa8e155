"""A web server on this machine that gives files well and badly, and plays Google Drive."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

PIECE_BYTES = 1000

QUOTA_PAGE = b"""<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head>
<body><div id="uc-text"><p class="uc-error-caption">Sorry, you can't view or download this file.</p>
<p class="uc-error-subcaption">Too many users have viewed or downloaded this file recently.</p>
</div></body></html>"""
LOGIN_PAGE = b"<!doctype html><html><head><title>Google Drive: Sign-in</title></head></html>"
# As Drive writes it, the form is one line.
FORM = (
    '<form id="download-form" action="{url}/download" method="get">'
    '<input type="submit" id="uc-download-link" value="Download anyway"/>'
    '<input type="hidden" name="id" value="{id}"><input type="hidden" name="confirm" value="t">'
    "</form>"
)
WARNING_PAGE = (
    "<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head><body>"
    f"<p class='uc-warning-caption'>Google Drive can't scan this file.</p>{FORM}</body></html>"
)


@dataclass
class Served:
    """One file, and how it is given.

    Attributes:
        cuts: after how many bytes the answers break off, one after the other; then none does.
        is_always_cut: the last of `cuts` holds for all that follow.
        pause_seconds: before each piece.
        holds_at: after so many bytes nothing comes any more.
        shift_bytes: so much later than it was asked for a part begins.
        ignores_if_range: a part is given, whatever version it was asked for of.
        then: what lies there after the next answer.
        ends_by_closing: the answer has no length, and ends when the connection does.
    """

    data: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    has_ranges: bool = True
    etag: str | None = '"v1"'
    cuts: list[int] = field(default_factory=list)
    is_always_cut: bool = False
    pause_seconds: float = 0.0
    holds_at: int | None = None
    piece_bytes: int = PIECE_BYTES
    shift_bytes: int = 0
    ends_by_closing: bool = False
    is_chunked: bool = False
    ignores_if_range: bool = False
    then: "Served | None" = None

    def next_cut(self) -> int | None:
        if self.is_always_cut:
            return self.cuts[0]
        return self.cuts.pop(0) if self.cuts else None


@dataclass
class FileServer:
    """What is served, and what was asked for: path with query, and the range or ""."""

    url: str = ""
    files: dict[str, Served] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def ranges(self) -> list[str]:
        return [wanted for _, wanted in self.requests]


class Handler(BaseHTTPRequestHandler):
    server_of: FileServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Nothing: a test's output is its own."""

    def _answer(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server_of.requests.append((self.path, wanted))
        served = self._find()
        if served.then is not None:
            known = self.server_of.files
            known.update({key: served.then for key, value in known.items() if value is served})
        start = self._start(served, wanted)
        if start is None:
            self._send_head(416, 0, {})
            return
        headers = dict(served.headers)
        if served.etag:
            headers["ETag"] = served.etag
        if start:
            size = len(served.data)
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        length = None if served.ends_by_closing else len(served.data) - start
        if served.is_chunked:
            headers["Transfer-Encoding"], length = "chunked", None
        self._send_head(206 if start else served.status, length, headers)
        if self.command == "GET":
            self._send_body(served, served.data[start:])

    def _find(self) -> Served:
        parts = urlsplit(self.path)
        if parts.path == "/redirected":
            location = {"Location": parse_qs(parts.query)["to"][0]}
            return Served(b"", 302, location, etag=None)
        file_id = parse_qs(parts.query).get("id", [""])[0]
        known = self.server_of.files
        for key in (self.path, f"{parts.path}?id={file_id}", parts.path):
            if key in known:
                return known[key]
        return Served(b"<html><body>Not found</body></html>", 404, {"Content-Type": "text/html"})

    def _start(self, served: Served, wanted: str) -> int | None:
        version = served.etag or served.headers.get("Last-Modified")
        is_same = served.ignores_if_range or self.headers.get("If-Range", version) == version
        if not wanted or not served.has_ranges or not is_same or served.status != 200:
            return 0
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) + served.shift_bytes
        return start if start < len(served.data) else None

    def _send_head(self, status: int, length: int | None, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        elif "Transfer-Encoding" not in headers:
            self.close_connection = True
        self.end_headers()

    def _send_body(self, served: Served, data: bytes) -> None:
        cut = served.next_cut()
        kept = data if cut is None else data[:cut]
        for first in range(0, len(kept), served.piece_bytes):
            if served.pause_seconds and self.server_of.stopping.wait(served.pause_seconds):
                break
            if served.holds_at is not None and first >= served.holds_at:
                self.server_of.stopping.wait()
                break
            piece = kept[first : first + served.piece_bytes]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if served.is_chunked else piece)
            self.wfile.flush()
        if served.is_chunked and cut is None:
            self.wfile.write(b"0\r\n\r\n")
        if cut is not None:
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent where who asked has gone; anything else is the test's own mistake."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def shared_on_drive(server: FileServer, file_id: str, served: Served, name: str) -> None:
    """Let Drive give a large file: first the page that warns, then the file."""
    page = WARNING_PAGE.format(url=server.url, id=file_id).encode()
    html = {"Content-Type": "text/html; charset=utf-8"}
    server.files[f"/uc?id={file_id}"] = Served(page, headers=html, etag=None)
    served.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    served.headers["Content-Type"] = "application/octet-stream"
    server.files[f"/download?id={file_id}"] = served


@contextlib.contextmanager
def running_file_server() -> Iterator[FileServer]:
    known = FileServer()
    handler = type("Bound", (Handler,), {"server_of": known})
    server = Server(("127.0.0.1", 0), handler)
    known.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield known
    finally:
        known.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    """A web server on this machine that serves nothing yet."""
    with running_file_server() as running:
        yield running
