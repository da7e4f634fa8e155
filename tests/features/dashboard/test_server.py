"""The server as its clients see it: who gets in, what is answered, that nothing can be changed."""

import gzip
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infrastructure.features.dashboard.server import Dashboard
from tests.monitoring.written_run import add, falling, write_run


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Dashboard]:
    dashboard = Dashboard(folder, **{"port": 0, **options})
    thread = threading.Thread(target=dashboard.serve)
    thread.start()
    try:
        yield dashboard
    finally:
        dashboard.close()
        thread.join()


def fetch(
    dashboard: Dashboard, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"http://127.0.0.1:{dashboard.port}{path}"
    request = urllib.request.Request(url, method=method, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    add(write_run(tmp_path / "runs"), *falling(1, 10))
    return tmp_path / "runs"


def test_the_page_and_its_parts_are_answered(runs: Path) -> None:
    with serving(runs) as dashboard:
        assert dashboard.url == f"http://127.0.0.1:{dashboard.port}/"
        status, headers, page = fetch(dashboard)
        assert (status, headers["Cache-Control"]) == (200, "no-store")
        assert b"step 10" in page
        status, headers, look = fetch(dashboard, "/look")
        assert status == 200
        assert look in page
        status, _, body = fetch(dashboard, "/look", If_None_Match=headers["ETag"])
        assert (status, body) == (304, b"")
        status, headers, body = fetch(dashboard, "/look", Accept_Encoding="gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(body) == look


def test_what_is_not_there_is_404(runs: Path) -> None:
    with serving(runs) as dashboard:
        for path in ("/run.json", "/../runs", "/look?run=nothing", "/favicon.ico"):
            assert fetch(dashboard, path)[0] == 404, path


def test_nothing_but_reading_is_possible(runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    with serving(runs) as dashboard:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert fetch(dashboard, "/", method)[0] == 501, method
        assert fetch(dashboard)[0] == 200
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


def test_another_host_name_needs_the_token(runs: Path) -> None:
    """A page elsewhere may make its own name point to this machine."""
    with serving(runs) as dashboard:
        for host in ("evil.example", "localhost.evil.example", "evil.example:80", "", "[::"):
            assert fetch(dashboard, "/look", Host=host)[0] == 403, host
        for host in ("localhost", "localhost:99", "127.0.0.1", "[::1]:80"):
            assert fetch(dashboard, "/look", Host=host)[0] == 200, host
        proxied = dashboard.path.replace("/?", "/look?")
        assert fetch(dashboard, proxied, Host="x-colab.example")[0] == 200
        assert fetch(dashboard, proxied + "x", Host="x-colab.example")[0] == 403


def test_bound_elsewhere_everybody_needs_the_token(runs: Path) -> None:
    with serving(runs, host="0.0.0.0") as dashboard:
        assert dashboard.url == f"http://localhost:{dashboard.port}{dashboard.path}"
        assert fetch(dashboard)[0] == 403
        assert fetch(dashboard, "/look?token=wrong")[0] == 403
        assert fetch(dashboard, "/look?token=%C3%A9")[0] == 403
        assert fetch(dashboard, dashboard.path)[0] == 200


def test_each_dashboard_has_a_token_of_its_own(runs: Path) -> None:
    tokens = set()
    for _ in range(3):
        dashboard = Dashboard(runs, port=0)
        tokens.add(dashboard.token)
        dashboard.close()
    assert len(tokens) == 3
    assert min(map(len, tokens)) >= 32


def test_the_token_is_in_no_answer(runs: Path) -> None:
    with serving(runs) as dashboard:
        for path in ("/", "/look", dashboard.path):
            assert dashboard.token.encode() not in fetch(dashboard, path)[2]


def test_a_viewer_that_goes_away_in_the_middle_disturbs_nobody(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(runs) as dashboard:
        for sent in (b"", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            viewer = socket.create_connection(("127.0.0.1", dashboard.port))
            viewer.sendall(sent)
            viewer.close()
        assert fetch(dashboard)[0] == 200
    assert capsys.readouterr().err == ""


def test_a_port_that_is_taken_is_reported(runs: Path) -> None:
    with (
        serving(runs) as dashboard,
        pytest.raises(ValueError, match=r"dashboard\.port_unavailable"),
    ):
        Dashboard(runs, port=dashboard.port)
    with pytest.raises(ValueError, match=r"dashboard\.port_unavailable"):
        Dashboard(runs, port=99999)
