"""The live panel: what it shows, how often, and that nothing in it stops a training."""

import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from colab.live_panel import LOOK_SECONDS, LivePanel
from infrastructure.backup.format.store import Store
from infrastructure.core.files import write_json
from tests.monitoring.browser import open_browser
from tests.monitoring.written_run import (
    a_training,
    add,
    falling,
    step_record,
    write_run,
)


class Shown:
    """What was shown, in place of a cell."""

    def __init__(self) -> None:
        self.html: list[str] = []
        self.text: list[str] = []

    def show(self, html: str, text: str) -> None:
        self.html.append(html)
        self.text.append(text)


def a_saved_training(folder: Path, **summary: Any) -> Path:
    directory = a_training(folder, **summary)
    Store(directory / "checkpoints").commit({}, {"step": 25}, step=25)
    return directory


def shown(directory: Path, advice: str = "") -> tuple[str, str]:
    output = Shown()
    panel = LivePanel(directory, advice, output)  # type: ignore[arg-type]
    panel.look()
    panel.finish()
    return output.html[-1], output.text[-1]


def test_everything_that_matters_is_shown(tmp_path: Path) -> None:
    html, text = shown(a_saved_training(tmp_path), "Interrupting the cell saves it.")
    for part in (
        'data-key="loss"',
        "14.0 of 15.0 GiB",
        "Last durable checkpoint",
        "step 25",
        "notebook.saved_here_only",
        "monitoring.checkpoints_not_backed_up",
        "Interrupting the cell saves it.",
    ):
        assert part in html, part
    assert text.startswith("20260101-a: step 30 of 40 · 75.0% · loss 1.069 · held-out loss 1.250")
    assert text.endswith("saved: step 25 · monitoring.checkpoints_not_backed_up()")
    write_json(tmp_path / "20260101-a/summary.json", {"status": "finished"})
    assert "Interrupting the cell" not in shown(tmp_path / "20260101-a", "Interrupting the cell")[0]


def test_the_last_durable_checkpoint_is_the_one_that_the_place_has_confirmed(
    tmp_path: Path,
) -> None:
    directory = a_saved_training(tmp_path)
    backup = {"place": "/content/drive/MyDrive/temper", "confirmed_step": None}
    write_json(directory / "checkpoints/backup.json", backup)
    html, _ = shown(directory)
    assert 'none yet</div><div class="more">at /content/drive/MyDrive/temper' in html
    assert "notebook.saved_on_this_machine" in html
    backup |= {"confirmed_step": 20, "saved_at": time.time() - 125}
    write_json(directory / "checkpoints/backup.json", backup)
    html, _ = shown(directory)
    assert 'step 20</div><div class="more">2 min 05 s ago, at /content/drive' in html
    assert "monitoring.work_at_risk" in html


def test_before_the_first_step_the_panel_shows_that(tmp_path: Path) -> None:
    html, text = shown(write_run(tmp_path))
    assert "notebook.no_step_logged_yet" in html
    assert "nothing yet" in html
    assert "monitoring.no_step_yet()\nnotebook.nothing_saved_yet()" in text


def test_a_run_that_ended_before_its_first_step_is_reported_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, output = write_run(tmp_path), Shown()
    panel = LivePanel(directory, "", output)  # type: ignore[arg-type]
    panel.look()
    assert not panel.has_ended
    shutil.rmtree(directory)
    assert panel.has_ended
    panel.finish()
    assert output.text[-1] == "notebook.run_without_a_step(run=20260101-a)"
    assert output.text[-1] in output.html[-1]
    assert not caplog.records
    assert not directory.exists()


def test_before_the_first_backup_the_panel_names_the_place_of_the_configuration(
    tmp_path: Path,
) -> None:
    directory = write_run(tmp_path)
    record = json.loads((directory / "run.json").read_text())
    record["config"] = {"backup.place": {"value": "/backup", "source": "cell"}}
    write_json(directory / "run.json", record)
    html, text = shown(directory)
    assert 'none yet</div><div class="more">at /backup' in html
    assert text.endswith(" · monitoring.backup_nothing_confirmed(place=/backup)")
    record["config"]["enable_backups"] = {"value": False, "source": "cell"}
    write_json(directory / "run.json", record)
    assert shown(directory)[1].endswith("monitoring.checkpoints_not_backed_up()")


def test_it_is_drawn_once_a_second_and_less_often_where_it_costs_much(tmp_path: Path) -> None:
    now, used, output = [0.0], [0.0], Shown()
    costs = iter([0.0, 0.001, 0.0, 0.0, 0.0, 0.05])

    def cpu() -> float:
        used[0] += next(costs, 0.0)
        return used[0]

    panel = LivePanel(a_saved_training(tmp_path), "", output, lambda: now[0], cpu)  # type: ignore[arg-type]
    for moment in (0.0, 0.5, 0.99, LOOK_SECONDS):
        now[0] = moment
        panel.update(1)
    assert len(output.html) == 2
    now[0] = 2 * LOOK_SECONDS  # this one costs 50 ms of the processor
    panel.update(2)
    for moment in (3.0, 6.9):
        now[0] = moment
        panel.update(3)
    assert len(output.html) == 3
    now[0] = 7.1
    panel.update(4)
    assert len(output.html) == 4
    panel.close()  # the end is always shown
    assert len(output.html) == 5
    panel.finish()


class Broken(Shown):
    def show(self, html: str, text: str) -> None:
        super().show(html, text)
        raise RuntimeError("the browser is gone")


def test_what_fails_in_it_is_reported_once_and_switched_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = Broken()
    panel = LivePanel(a_saved_training(tmp_path), "", output)  # type: ignore[arg-type]
    for step in range(3):
        panel.update(step)
    panel.close()
    panel.finish()
    assert len(output.html) == 1
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        "core.part_is_off(name=the live panel, error=the browser is gone) at test_live_panel.py:"
    )
    assert panel.has_ended
    lost = LivePanel(tmp_path / "nowhere", "", output)  # type: ignore[arg-type]
    lost.look()
    lost.finish()
    assert lost.has_ended


def test_long_runs_stay_small_on_the_wire(tmp_path: Path) -> None:
    directory = write_run(tmp_path, total_steps=20_000)
    add(directory, *falling(1, 20_000))
    html, _ = shown(directory)
    assert len(html) < 130_000  # half of it is the script


def test_looking_loads_no_torch() -> None:
    probe = "import sys, colab.live_panel; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_each_update_draws_its_charts_with_the_script_of_the_first(tmp_path: Path) -> None:
    """As notebooks do it: the output is replaced, and its scripts are run again."""
    directory = a_saved_training(tmp_path)
    html, _ = shown(directory)
    add(directory, step_record(31, math.nan), step_record(32, 0.5))
    (tmp_path / "page.html").write_text("<div id=output></div>")
    show = """
    document.getElementById("output").innerHTML = %s;
    for (const script of document.querySelectorAll("script")) {
      const run = document.createElement("script");
      run.textContent = script.textContent;
      script.replaceWith(run);
    }
    """
    with open_browser() as browser:
        browser.open((tmp_path / "page.html").as_uri(), scheme="dark")
        for update in (html, shown(directory)[0]):
            browser.evaluate(show % json.dumps(update))
            assert browser.evaluate("document.querySelectorAll('.uplot canvas').length") == 2
        assert browser.evaluate("document.querySelectorAll('.now')[0].textContent").startswith(
            "last 0.5000 · held out"
        )
        assert browser.complaints == []


def test_on_a_phone_the_panel_has_the_width_of_the_page(tmp_path: Path) -> None:
    """JupyterLab keeps a column free beside an output, which is a fifth of a phone."""
    html, _ = shown(a_saved_training(tmp_path))
    page = tmp_path / "page.html"
    page.write_text(
        "<style>body {margin: 0} .jp-OutputArea-child {display: flex}"
        ".jp-OutputPrompt {flex: 0 0 64px} .jp-OutputArea-output {flex: 1; min-width: 0}</style>"
        '<div class="jp-OutputArea-child"><div class="jp-OutputPrompt"></div>'
        f'<div class="jp-OutputArea-output">{html}</div></div>'
    )
    with open_browser() as browser:
        width = "document.querySelector('.temper-panel').getBoundingClientRect().width"
        browser.open(page.as_uri(), width=390)
        assert browser.evaluate(width) == 390
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        browser.open(page.as_uri(), width=1000)
        assert browser.evaluate(width) == 1000 - 64
