"""The quickstart in a real JupyterLab and a real browser: all cells run, form and panel are there.

JupyterLab and the kernel that it starts are forks, which have imported PyTorch already. SCREENSHOTS
names a folder for pictures of it.
"""

import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.forks import Forked, forked_python, server_name
from tests.monitoring.browser import Browser, open_browser
from tests.notebooks.notebook_files import NOTEBOOKS, cells_of, copy_into, variables
from tests.slow import slow

pytest.importorskip("jupyterlab", reason="Colab's column shows notebooks without JupyterLab")
pytest.importorskip("ipywidgets", minversion="8", reason="JupyterLab shows none of version 7")

SECONDS = 180.0
# JupyterLab as its command starts it, but for its kernels: those are forks, too.
LAB = """
import sys
from tests.forks import share_server
from tests.notebooks.kernels import kernels_are_forks
share_server(sys.argv.pop(1))
from jupyterlab.labapp import main
with kernels_are_forks():
    main()
"""
APP = "window.jupyterapp"
HAS_KERNEL = f"{APP} && Array.from({APP}.serviceManager.sessions.running()).length > 0"
IS_IDLE = "document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'"
# Cells that are out of sight are in the page, too; nobody is asked about news.
SETTINGS = {
    "notebook-extension/tracker": '{"windowingMode": "none"}',
    "apputils-extension/notification": '{"fetchNews": "false"}',
}
EXECUTED = "document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')"
NOT_YET = f"Array.from({EXECUTED}).filter(p => !/\\[\\d+\\]/.test(p.textContent)).length"
ERRORS = "document.querySelectorAll('[data-mime-type=\"application/vnd.jupyter.error\"]').length"


@contextmanager
def jupyterlab(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a JupyterLab for `folder`, on loopback, with a token."""
    token = secrets.token_hex(16)
    command = [sys.executable, "-c", LAB, server_name(), "--no-browser", "--allow-root", "--port=0"]
    command += ["--expose-app-in-browser", f"--IdentityProvider.token={token}", "--ip=127.0.0.1"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = folder.parent / "jupyterlab.log"
    for name, text in SETTINGS.items():
        file = folder.parent / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    environment = {**environment, "JUPYTERLAB_SETTINGS_DIR": str(folder.parent / "settings")}
    with log.open("wb") as output:
        process = forked_python(
            command, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=output
        )
    try:
        yield f"{_address(log, process)}/lab/tree/{NOTEBOOKS[0].name}?token={token}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def _address(log: Path, process: Forked) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@slow  # test_run_all.py runs its cells, tests/colab/test_live_panel.py shows its panel in a browser
@pytest.mark.timeout(600)
def test_the_quickstart_shows_form_panel_and_report(tmp_path: Path) -> None:
    notebook = copy_into(tmp_path / "lab", NOTEBOOKS[0])
    environment = variables(tmp_path)
    if os.environ.get("SCREENSHOTS"):  # so long that there is a picture of a training
        environment["TEMPER_TRAINING__MAX_STEPS"] = "120"
    with jupyterlab(notebook.parent, environment) as address, open_browser() as browser:
        browser.open(address, width=1200, height=1000)
        wait_for(browser, f"{HAS_KERNEL} && {IS_IDLE} && {EXECUTED}.length > 0")
        browser.evaluate(f"{APP}.commands.execute('notebook:run-all-cells') && true")
        wait_for(browser, "document.querySelector('.temper-panel') !== null")
        take(browser, "training", cell=4)
        wait_for(browser, f"{NOT_YET} === 0 || {ERRORS} > 0")
        for number in range(len(cells_of(NOTEBOOKS[0]))):
            take(browser, f"cell_{number}", cell=number)
        assert browser.evaluate(ERRORS) == 0
        assert browser.evaluate("document.querySelectorAll('.jupyter-widgets').length") > 20
        assert browser.evaluate("document.querySelectorAll('iframe[title=report]').length") == 1
        assert browser.evaluate(f"{EXECUTED}.length") == len(cells_of(NOTEBOOKS[0]))


def wait_for(browser: Browser, script: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not browser.evaluate(script):
        if time.monotonic() > deadline:
            take(browser, "stuck")
            raise AssertionError(f"never true: {script}")
        time.sleep(0.2)


def take(browser: Browser, name: str, cell: int | None = None) -> None:
    """A picture for a person, where one was asked for, with a code cell at the page's top."""
    folder = os.environ.get("SCREENSHOTS")
    if not folder:
        return
    if cell is not None:
        browser.evaluate(f"document.querySelectorAll('.jp-CodeCell')[{cell}].scrollIntoView()")
        time.sleep(0.5)  # the page comes to rest
    browser.screenshot(Path(folder) / f"quickstart_{name}.png")
