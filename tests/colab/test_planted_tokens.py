"""Tokens planted in every place where they may lie are found in nothing that a session leaves."""

import json
from pathlib import Path

import pytest

from tests.colab.kernels import start_kernel
from tests.fakes.google_colab import SITE, ColabSession, variables

# One that its shape gives away, and two that look like anything.
PLANTED = {
    "HF_TOKEN": "hf_QxPlantedPlantedPlantedPlanted07",
    "ALERT_WEBHOOK_URL": "http://127.0.0.1:9/services/correct-horse-battery",
    "MY_KEY": "staple-of-the-horse",
}
SETUP = """
import json, pathlib, sys
sys.path.insert(0, {site!r})
import colab, colab.drive
from ipywidgets import Widget
colab.drive.MOUNT_POINT = pathlib.Path({mount!r})
session = colab.begin()
key = colab.get_secret("MY_KEY")
"""
TRAIN = """
from tests.deployment.runs import small_settings
settings = small_settings(pathlib.Path({folder!r}), max_steps=2)
settings.pop("output_dir")
settings["monitor.alert_sinks"] = ["console", "log", "webhook"]
config = colab.configure(**session.settings(), **settings)
summary = colab.train(config)
"""


def test_no_planted_token_is_found_in_what_a_session_shows_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ColabSession(tmp_path / "google")
    session.folder.mkdir()
    in_colab = {name: {"payload": value} for name, value in PLANTED.items() if name != "HF_TOKEN"}
    session.behaves(secrets=in_colab)
    work = tmp_path / "work"
    work.mkdir()
    for name, value in variables(session.folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_TOKEN", PLANTED["HF_TOKEN"])
    monkeypatch.delenv("ALERT_WEBHOOK_URL", raising=False)
    with start_kernel(work) as kernel:
        cells = [
            kernel.run(SETUP.format(site=str(SITE), mount=str(tmp_path / "drive"))),
            kernel.run(TRAIN.format(folder=str(work))),
            kernel.run("form = colab.show_form(config)"),
            kernel.run("display(session, colab.bring_secrets(), summary)"),
            kernel.run("print(json.dumps(Widget.get_manager_state(), default=repr))"),
            kernel.run("print(len(key), 'letters')"),
        ]
    assert [cell.error for cell in cells] == [""] * len(cells)
    assert cells[-1].text == f"{len(PLANTED['MY_KEY'])} letters\n"
    assert "DropdownModel" in cells[-2].text  # the form's state was there to be searched
    shown = json.dumps([[cell.text, cell.shown] for cell in cells])
    assert "ALERT_WEBHOOK_URL: Colab secrets" in shown
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    files.pop(session.folder / "behaviour.json")  # there they were planted
    assert any(path.name == "run.json" for path in files)
    assert any("cloud" in path.parts for path in files)
    for name, value in PLANTED.items():
        assert value not in shown, name
        leaks = [str(path) for path, text in files.items() if value.encode() in text]
        assert leaks == [], name
