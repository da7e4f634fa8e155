"""The server as its clients see it: who gets in, what is answered, that nothing can be changed."""

import gzip
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infrastructure.features.dashboard.server import Dashboard, is_this_machine
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
    with serving(runs) as dashboard:
        taken = dashboard.port
        for host, port, reason in (
            ("127.0.0.1", taken, "dashboard.port_in_use()"),
            ("127.0.0.1", 99999, "dashboard.port_out_of_range()"),
            ("192.0.2.1", 0, "dashboard.address_unknown()"),
            ("::1", 0, "Address family for hostname not supported"),
        ):
            refused = f"dashboard.port_unavailable(host={host}, port={port}, reason={reason})"
            with pytest.raises(ValueError, match=re.escape(refused)):
                Dashboard(runs, host=host, port=port)


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        *(("localhost", True), ("127.8.9.1", True), ("::1", True), ("0.0.0.0", False)),
        *(("localhost.example", False), ("10.0.0.1", False), ("", False)),
    ],
)
def test_this_machine_is_its_loopback_interface(host: str, is_here: bool) -> None:
    assert is_this_machine(host) == is_here


def test_answers_have_their_headers(runs: Path) -> None:
    always = {
        **{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"},
        "X-Content-Type-Options": "nosniff",
    }
    html = {"Content-Type": "text/html; charset=utf-8"}
    text = {"Content-Type": "text/plain; charset=utf-8"}
    unknown = f"dashboard.unknown_run(name=nothing, folder={runs})\n"
    with serving(runs) as dashboard:
        tag = fetch(dashboard, "/look")[1]["ETag"]
        for path, given, status, more, body in (
            ("/", {}, 200, html, None),
            ("/look", {}, 200, {**html, "ETag": tag}, None),
            ("/look", {"If_None_Match": tag}, 304, {"ETag": tag}, ""),
            ("/look", {"If_None_Match": "x"}, 200, {**html, "ETag": tag}, None),
            ("/else", {}, 404, text, "dashboard.page_not_found()\n"),
            ("/?run=nothing", {}, 404, text, unknown),
            ("/", {"Host": "a.example"}, 403, text, "dashboard.token_missing()\n"),
        ):
            found, headers, sent = fetch(dashboard, path, **given)
            assert found == status
            assert (always | more).items() <= headers.items()
            assert body is None or sent.decode() == body
            if "Content-Type" in more:
                assert headers["Content-Length"] == str(len(sent))
            if "ETag" in more:
                assert float(headers["X-Now"]) == pytest.approx(time.time(), abs=60)
