"""A path need not be UTF-8: data is read wherever it lies, and all that is written can be read."""

import json
import os
from pathlib import Path

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.json_text import parse_json
from tests.deployment.runs import deploy, small_settings, write_rows

LATIN = os.fsdecode(b"zeil\xe9n.jsonl")  # as an old disk has it


def test_data_whose_name_is_no_utf8_is_trained_on_and_the_run_goes_on(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, max_steps=1)
    settings["data"]["path"] = str(write_rows(tmp_path / LATIN))
    run, lines = deploy(DeploymentConfig(**settings))
    for path in (path for path in run.rglob("*") if path.suffix in (".json", ".jsonl", ".html")):
        text = path.read_bytes().decode()  # strictly
        if path.suffix == ".json":
            parse_json(text)
    values = json.loads((run / "run.json").read_text())["configuration"]["values"]
    assert values["data"]["path"] == str(tmp_path / LATIN)
    assert "zeil\\xe9n.jsonl" in (run / "report.html").read_text()
    again, lines = deploy(DeploymentConfig(**settings))
    assert again == run
    assert any("finished" in line for line in lines), lines
    text = " ".join(lines)
    assert text.encode(errors="backslashreplace").decode()


def test_a_folder_of_runs_that_is_no_utf8_is_refused_before_anything(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write_rows(folder / "rows.jsonl")
    monkeypatch.chdir(folder)
    assert main(["train", "rows.jsonl", "--no-testing"]) == 2
    assert "run.output_dir_not_utf8" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["rows.jsonl"]
