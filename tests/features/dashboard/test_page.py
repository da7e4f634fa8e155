"""The live page in a real browser: it goes on by itself, fits phones, and asks nobody else."""

import html
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infrastructure.core.messages import WORDS
from infrastructure.monitoring.report.report import write_report
from tests.features.dashboard.test_server import serving
from tests.monitoring.browser import Browser, open_browser
from tests.monitoring.written_run import (
    add,
    evaluation,
    falling,
    sample,
    step_record,
    system_file,
    write_run,
)
from tests.slow import slow

ATTACK = "<img src=x onerror=document.title='taken'>"
NAMED_LOSS = "document.querySelector('#tiles .tile .value').textContent"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    done = write_run(folder, "20250101-done", status="finished")
    add(done, *falling(1, 40))
    directory = write_run(folder)
    add(directory, *falling(1, 30), evaluation(15, 1.9), evaluation(30, 1.25))
    samples = [sample(60 - second, step=second // 2) for second in range(60)]
    add(directory, *samples, file=system_file("system"))
    alert = {"time": time.time(), "step": 29, "rule": "gpu_memory", "message": "93% is above 90%"}
    add(directory, alert, file=system_file("alerts"))
    return folder


def test_the_page_follows_the_training_by_itself(runs: Path, browser: Browser) -> None:
    with serving(runs) as dashboard:
        url = dashboard.url
        browser.open(url)
        assert browser.evaluate(NAMED_LOSS) == "1.069"
        assert browser.evaluate("document.title") == "75.0% · 20260101-a · Temper"
        assert browser.evaluate("document.querySelectorAll('#curves .uplot').length") == 5
        add(runs / "20260101-a", step_record(36, 0.25))
        browser.wait_for(f"{NAMED_LOSS} === '0.2500'")
        assert "step 36 of 40" in browser.evaluate("document.body.innerText")
        (runs / "20260101-a/summary.json").write_text('{"status": "failed", "error": "E: broke"}')
        browser.wait_for("document.querySelector('#head .status').textContent === 'failed'")
        assert "E: broke" in browser.evaluate("document.getElementById('notices').innerText")
    assert [line for line in browser.complaints if "ERR_" not in line] == []


def test_a_click_shows_another_run(runs: Path, browser: Browser) -> None:
    with serving(runs) as dashboard:
        url = dashboard.url
        browser.open(url)
        browser.evaluate("document.querySelector('a[data-run=\"20250101-done\"]').click()")
        browser.wait_for("document.querySelector('#head .status')?.textContent === 'finished'")
        assert browser.evaluate("location.search") == "?run=20250101-done"


def test_values_zoom_log_scale_and_overlays_of_a_chart(runs: Path, browser: Browser) -> None:
    """By pointer and by keys; what somebody has set stays when new numbers come."""
    loss = "document.querySelector('figure[data-key=loss]')"
    now = f"{loss}.querySelector('.now').textContent"

    def press(key: str) -> None:
        event = f"new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}})"
        browser.evaluate(f"{loss}.querySelector('.plot').dispatchEvent({event})")

    with serving(runs) as dashboard:
        url = dashboard.url
        browser.open(url)
        close = "[null, 0.51211, 0.51212, 1234.5001, 1234.5002, 0.1 + 0.2]"
        labels = browser.evaluate(
            f"temperCharts.tickLabels({close}, {{scale: 1, unit: ' GiB'}})+''"
        )
        assert labels.replace(" GiB", "") == ",0.51211,0.51212,1,234.5001,1,234.5002,0.3"
        ranges = "[temperCharts.valueRange(0, 0, false), temperCharts.valueRange(1, 3, true)]"
        assert browser.evaluate(f"JSON.stringify({ranges})") == "[[0,1],[0,3.24]]"
        browser.evaluate(f"{loss}.scrollIntoView()")
        over = f"JSON.stringify({loss}.querySelector('.u-over').getBoundingClientRect())"
        box = json.loads(browser.evaluate(over))
        browser.move_to(box["right"] - 3, box["top"] + box["height"] / 2)
        browser.wait_for(f"{now} === 'step 30 · 1.07 · held out 1.25'")
        press("ArrowLeft")
        browser.wait_for(f"{now} === 'step 29 · 1.1 · held out 1.25'")
        browser.move_to(5, 5)
        browser.wait_for(f"{now}.startsWith('last ')")
        zoom, log = (f"{loss}.querySelectorAll('.chart-buttons button')[{i}]" for i in (0, 1))
        assert browser.evaluate(f"{zoom}.hidden")
        press("+")
        browser.wait_for(f"!{zoom}.hidden")
        browser.evaluate(f"{log}.click()")
        browser.wait_for(f"{log}.getAttribute('aria-pressed') === 'true'")
        browser.evaluate("document.querySelector('input[data-with=\"20250101-done\"]').click()")
        browser.wait_for(f"{loss}.querySelector('.run-keys').textContent.includes('20250101-done')")
        assert browser.evaluate("location.search") == "?with=20250101-done"
        compared = browser.evaluate("document.getElementById('compared').innerText")
        assert "finished" in compared
        assert "running" in compared
        add(runs / "20260101-a", step_record(34, 0.5))
        browser.wait_for(f"{NAMED_LOSS} === '0.5000'")
        assert not browser.evaluate(f"{zoom}.hidden")
        assert browser.evaluate(f"{log}.getAttribute('aria-pressed')") == "true"
        press("Escape")
        browser.wait_for(f"{zoom}.hidden")
        assert browser.complaints == []


def test_a_run_in_other_units_is_laid_over_in_those_of_the_chart(
    runs: Path, browser: Browser
) -> None:
    """And a setting that one of the runs did not know is no difference between them."""
    large = write_run(runs, "20240101-large", status="finished")
    add(large, *({**record, "memory_bytes": 3.0 * 2**30} for record in falling(1, 40)))
    record = json.loads((large / "run.json").read_text())
    record["config"] |= {"training.new_one": 1, "data.path": {"value": "a/b.csv", "source": "x"}}
    (large / "run.json").write_text(json.dumps(record))
    keys = "document.querySelector('figure[data-key=memory_bytes] .run-keys').textContent"
    with serving(runs) as dashboard:
        url = dashboard.url
        browser.open(f"{url}?with=20240101-large")
        browser.wait_for(f"{keys}.includes('20240101-large 3,072 MiB')")
        compared = browser.evaluate("document.getElementById('compared').innerText")
        assert "new one" not in compared
        assert "b.csv" in compared


def test_a_report_in_a_notebook_s_frame_has_charts_and_contents(
    runs: Path, browser: Browser, tmp_path: Path
) -> None:
    report = html.escape(write_report(runs / "20260101-a").read_text())
    frame = f'<iframe srcdoc="{report}" style="width:800px;height:500px"></iframe>'
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html>{frame}")
    browser.open((tmp_path / "notebook.html").as_uri())
    framed = "document.querySelector('iframe').contentDocument"
    browser.wait_for(f"{framed}.querySelector('figure[data-key=loss] .uplot') !== null")
    browser.evaluate(f"{framed}.querySelector('nav.contents a:last-child').click()")
    browser.wait_for("document.querySelector('iframe').contentWindow.scrollY > 500")
    assert browser.evaluate(f"{framed}.URL") == "about:srcdoc"
    assert browser.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_the_page_fits_every_width(
    runs: Path,
    browser: Browser,
    tmp_path: Path,
    width: int,
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """800 is a Colab cell; nothing reaches out of the window, and the colours are the scheme's."""
    monkeypatch.delenv(WORDS)
    add(runs / "20260101-a", *falling(31, 140))  # enough for all that a caption can say
    with serving(runs) as dashboard:
        url = dashboard.url
        browser.open(url, width=width, scheme=scheme)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        sticking_out = (
            "[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll')"
            f" && e.getBoundingClientRect().right > {width} + 1).length"
        )
        assert browser.evaluate(sticking_out) == 0
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 27)"}[scheme]
        assert browser.screenshot(tmp_path / "page.png").stat().st_size > 20_000


def test_text_of_a_run_is_never_markup(runs: Path, browser: Browser) -> None:
    directory = runs / "20260101-a"
    (directory / "run.json").write_text(json.dumps({"run_id": ATTACK, "model": {"name": ATTACK}}))
    add(directory, {"step": 1, "kind": ATTACK, "message": ATTACK}, file="logs/errors/errors.jsonl")
    add(directory, {"time": 1.0, "rule": ATTACK, "message": ATTACK}, file=system_file("alerts"))
    with serving(runs) as dashboard:
        url = dashboard.url
        browser.open(url)
        add(directory, step_record(33, 0.5) | {ATTACK: 1.0})
        browser.wait_for(f"{NAMED_LOSS} === '0.5000'")
        assert browser.evaluate("document.images.length") == 0
        assert browser.evaluate("document.title") != "taken"


def test_a_dashboard_that_goes_away_and_comes_back_is_shown(runs: Path, browser: Browser) -> None:
    with serving(runs) as dashboard:
        url = dashboard.url
        browser.open(url)
        port = int(url.rstrip("/").rpartition(":")[2])
    browser.wait_for("document.getElementById('lost').textContent.includes('does not answer')")
    with serving(runs, port=port):
        add(runs / "20260101-a", step_record(37, 0.75))
        browser.wait_for("document.getElementById('lost').textContent === ''")
        browser.wait_for(f"{NAMED_LOSS} === '0.7500'")


@contextmanager
def proxy_to(port: int) -> Iterator[str]:
    """The address of a server that passes `/proxy/…` on under another name, as notebooks' do."""

    class Passing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path.startswith("/proxy/")
            url = f"http://127.0.0.1:{port}{self.path.removeprefix('/proxy')}"
            request = urllib.request.Request(url, headers={"Host": "x-notebook.example"})
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    status, headers, body = answer.status, answer.headers, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    status, headers, body = error.code, error.headers, error.read()
            self.send_response(status)
            for name in ("Content-Type", "Content-Security-Policy", "ETag", "Content-Length"):
                if name in headers:
                    self.send_header(name, headers[name])
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/proxy"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@slow
def test_behind_a_proxy_with_a_path_and_another_name_the_page_goes_on(
    runs: Path, browser: Browser
) -> None:
    with serving(runs) as dashboard, proxy_to(dashboard.port) as url:
        browser.open(f"{url}/")
        assert "dashboard.token_missing" in browser.evaluate("document.body.innerText")
        browser.open(f"{url}{dashboard.path}")
        assert browser.evaluate(NAMED_LOSS) == "1.069"
        add(runs / "20260101-a", step_record(38, 0.125))
        browser.wait_for(f"{NAMED_LOSS} === '0.1250'")
        browser.evaluate("document.querySelector('a[data-run=\"20250101-done\"]').click()")
        browser.wait_for("document.querySelector('#head .status')?.textContent === 'finished'")
