"""A real headless Chromium, driven by its own protocol: what a page does and looks like."""

import asyncio
import base64
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
SECONDS = 60.0


class Browser:
    """One tab. Waits for real time to pass, as a person does.

    Attributes:
        complaints: what the page's console and network had to complain of.
    """

    def __init__(self, runner: asyncio.Runner, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._runner = runner
        self._socket = socket
        self._number = 0

    def open(self, url: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load `url` in a window of that size and colour scheme, and wait until it is there."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self._call("Page.navigate", url=url)
        self.wait_for(f"location.href !== 'about:blank' && {LOADED}")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Return as soon as the expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(script):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.1)

    def move_to(self, x: float, y: float) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> Path:
        """The whole page, not the window alone."""
        taken = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._runner.run(self._answer(method, parameters))

    async def _answer(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            answer = await asyncio.wait_for(self._socket.receive_json(), SECONDS)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            if answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(str(answer["params"]))


LOADED = "document.readyState === 'complete'"


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser of its own, gone at the end; where none is installed the test is skipped."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [program, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-port=0"]
        process = subprocess.Popen(
            [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            with asyncio.Runner() as runner:
                session, socket = runner.run(_connect(_port(Path(folder), process)))
                try:
                    browser = Browser(runner, socket)
                    for domain in ("Page", "Runtime", "Log"):
                        browser._call(f"{domain}.enable")
                    yield browser
                finally:
                    runner.run(session.close())
        finally:
            process.terminate()
            process.wait(timeout=SECONDS)


def _port(folder: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + SECONDS
    file = folder / "DevToolsActivePort"
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError("the browser did not start")


async def _connect(port: int) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://127.0.0.1:{port}/json") as answer:
        tabs = await answer.json()
    (address,) = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
    return session, await session.ws_connect(address, max_msg_size=1 << 28)
