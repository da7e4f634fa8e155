"""A webhook on this machine: takes JSON by POST, and answers what it is told to."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

from infrastructure.features.notifications import alert_queue
from infrastructure.features.notifications.webhook import VARIABLE, WebhookAlerts


class WebhookServer(ThreadingHTTPServer):
    """Attributes:
    received: what was posted, in order, whatever was answered.
    answers: status codes of the next answers, with their headers; then 200.
    paths: that were posted to.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[dict[str, Any]] = []
        self.answers: list[int | tuple[int, dict[str, str]]] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hooks/SECRET"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, WebhookServer)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/json"
        self.server.received.append(json.loads(body))
        self.server.paths.append(self.path)
        answer = self.server.answers.pop(0) if self.server.answers else 200
        code, headers = answer if isinstance(answer, tuple) else (answer, {})
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None: ...


@contextmanager
def webhook_server() -> Iterator[WebhookServer]:
    """A sink waits for it as long as a busy machine may need."""
    with WebhookServer() as server, mock.patch.object(alert_queue, "CLOSE_SECONDS", 60.0):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def alerts_to(url: str, run: str = "run", wait_seconds: float = 0.01) -> WebhookAlerts:
    """The sink of a run whose environment names this address."""
    with mock.patch.dict(os.environ, {VARIABLE: url}):
        return WebhookAlerts(Path("runs", run), wait_seconds)
