"""`temper dashboard`: a small web server that shows the runs of a folder, live.

The server only reads files, and answers only GET requests. Each snapshot of a run is made once for
all viewers. Requests to a loopback name of this machine need no token. All other requests need a
token, including those of a proxy that sends another name. So a foreign web page whose host name
resolves to this machine (DNS rebinding) cannot read anything.
"""

import errno
import gzip
import hmac
import ipaddress
import logging
import secrets
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.features.dashboard.snapshots import Looks

logger = logging.getLogger(__name__)

DEFAULT_PORT = 8765
WHY_NOT = {
    errno.EADDRINUSE: "dashboard.port_in_use",
    errno.EACCES: "dashboard.port_reserved",
    errno.EADDRNOTAVAIL: "dashboard.address_unknown",
}
HTML = "text/html; charset=utf-8"
IDLE_SECONDS = 60.0  # an idle connection is closed


class Dashboard:
    """The server. It is bound to its port when it is created, but answers requests only in `serve`.

    Args:
        output_dir: the folder of the runs.
        run: the run to show; by default, always the newest one.
        host: the address to listen on. Unless only this machine can reach it, the token is
            required.
        port: the port to listen on; 0 means any free port.

    Attributes:
        token: the token that viewers on other machines need.

    Raises:
        ValueError: if the server cannot listen on this host or port.
    """

    def __init__(
        self,
        output_dir: Path,
        run: Path | None = None,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
    ) -> None:
        self.looks = Looks(output_dir, run)
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = _Server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            code = WHY_NOT.get(getattr(error, "errno", None) or 0)
            if isinstance(error, OverflowError):
                code = "dashboard.port_out_of_range"
            why = phrase(code) if code else None
            raise InputError(
                "dashboard.port_unavailable",
                host=host,
                port=port,
                reason=why or getattr(error, "strerror", None) or error,
            ) from error
        self._server.dashboard = self
        self._is_serving = False
        self.host, self.port = host, int(self._server.server_address[1])

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        return is_this_machine(self.host)

    @property
    def path(self) -> str:
        """The page's path with the token, for a proxy such as a notebook's."""
        return "/?" + urlencode({"token": self.token})

    @property
    def url(self) -> str:
        """The page's address, with the token if it is required."""
        name = self.host if self.host not in ("0.0.0.0", "") else "localhost"
        return f"http://{name}:{self.port}" + ("/" if self.is_local else self.path)

    def serve(self) -> None:
        """Answer requests until another thread calls `close`, or until KeyboardInterrupt."""
        self._is_serving = True
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._is_serving = False  # `close` need not wait for it

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._is_serving:
            self._server.shutdown()
        self._server.server_close()
        self.looks.close()

    def admits(self, host_header: str, token: str) -> bool:
        """Return whether a request may read the runs, given its Host header and its token."""
        if hmac.compare_digest(token.encode(), self.token.encode()):
            return True
        return self.is_local and is_this_machine(_name_of(host_header))


def is_this_machine(host: str) -> bool:
    """Return whether `host` is a name or an address of the loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name_of(host_header: str) -> str:
    """Return the host of a Host header: `localhost:8765` → `localhost`, `[::1]:8765` → `::1`."""
    try:
        return urlsplit(f"//{host_header}").hostname or ""
    except ValueError:
        return ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    dashboard: Dashboard

    def handle_error(self, request: object, client_address: object) -> None:
        """Log an error at debug level, because viewers may disconnect during a response."""
        logger.debug("a request was interrupted", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "temper", ""
    timeout = IDLE_SECONDS
    server: _Server

    def do_GET(self) -> None:
        dashboard = self.server.dashboard
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if not dashboard.admits(self.headers.get("Host", ""), query.get("token", [""])[-1]):
            self._send_text(HTTPStatus.FORBIDDEN, phrase("dashboard.token_missing"))
            return
        run = query.get("run", [None])[-1]
        try:
            if address.path == "/":
                self._send_page(run)
            elif address.path == "/look":
                self._send_look(run)
            else:
                self._send_text(HTTPStatus.NOT_FOUND, phrase("dashboard.page_not_found"))
        except ValueError as error:
            self._send_text(HTTPStatus.NOT_FOUND, str(error))

    def _send_page(self, run: str | None) -> None:
        html = self.server.dashboard.looks.look(run).render()
        self._send(HTTPStatus.OK, HTML, html.encode(errors="backslashreplace"), {})

    def _send_look(self, run: str | None) -> None:
        look = self.server.dashboard.looks.look(run)
        tag = f'"{look.version}"'
        headers = {"ETag": tag, "X-Now": f"{time.time():.1f}"}
        if self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, None, b"", headers)
        elif "gzip" in self.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            self._send(HTTPStatus.OK, HTML, look.zipped, headers)
        else:
            self._send(HTTPStatus.OK, HTML, gzip.decompress(look.zipped), headers)

    def _send_text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode(), {})

    def _send(
        self, status: HTTPStatus, kind: str | None, body: bytes, headers: dict[str, str]
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if kind is not None:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because the address may contain the token."""
