"""The record of a run says what every view shows, as JSON, whatever state the run is in."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from colab.panel_page import panel_html
from infrastructure.commands.main import main
from infrastructure.monitoring.records.run_view import RunView, read_view
from infrastructure.monitoring.report.report import render_report
from infrastructure.monitoring.training_monitor import ALERTS_FILE
from infrastructure.monitoring.watch import frame
from tests.monitoring.written_run import (
    a_training,
    add,
    step_record,
    write_run,
)

RESULT: dict[str, Any] = {
    **{"before": {"eval_loss": 3.0, "exact_match": {"all": 0.0}}, "steps": 40, "seconds": 126.0},
    **{"after": {"eval_loss": 1.0, "exact_match": {"all": 0.5}}, "cost": {"text": "$2.90"}},
}
RESULT["cost"]["amount"] = 2.9


def views_of(view: RunView) -> dict[str, str]:
    """Return what each of the three shows."""
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(frame(view, 120))
    return {
        "report": render_report(view),
        "panel": panel_html(view, None, "", 10.0),
        "terminal": console.export_text(),
    }


STATES = pytest.mark.parametrize(
    ("summary", "state", "texts"),
    [
        ({}, "running", ["1.069", "1.250", "Training (process {process} on"]),
        (
            {**RESULT, "status": "finished"},
            "finished",
            ["Finished at step 40, after 2 min 06 s.", "3 →", "0 % →", "50.0 %"],
        ),
        (
            {**RESULT, "status": "stopped", "reason": "Ctrl-C"},
            "stopped",
            ["Stopped before the end at step 40, after 2 min 06 s: Ctrl-C."],
        ),
        (
            {**RESULT, "status": "failed", "error": "E: it broke", "after": None},
            "failed",
            ["Failed at step 40, after 2 min 06 s.", "E: it broke", "loss 9"],
        ),
    ],
)


def require_texts(shown: str, texts: list[str]) -> None:
    plain = shown.replace('<span class="from">', "").replace("</span>", "")
    for text in [
        *(text.replace("{process}", f"{os.getpid()}") for text in texts),
        "step 29: 93 % is above 90 %",
    ]:
        assert text in plain


@STATES
def test_all_views_show_the_same(
    tmp_path: Path, summary: dict[str, Any], state: str, texts: list[str]
) -> None:
    view = read_view(a_training(tmp_path, **summary))
    assert view["state"] == state
    for shown in views_of(view).values():
        require_texts(shown, texts)


def test_the_record_is_json_without_a_file_being_read_again(tmp_path: Path) -> None:
    directory = a_training(tmp_path, **RESULT, status="finished")
    add(directory, step_record(31, float("nan")))
    view = read_view(directory)
    (directory / "run.json").unlink()
    (directory / "metrics.jsonl").unlink()
    assert all("20260101-a" in shown for shown in views_of(view).values())
    assert "Not finite: loss: NaN at step 31." in view["problems"]


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = a_training(tmp_path, **RESULT, status="finished")
    add(directory, step_record(31, float("nan")))
    assert main(["watch", str(directory), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # strict JSON
    assert set(printed) == RunView.__required_keys__
    assert [line["name"] for line in printed["headlines"]][:2] == ["Held-out loss", "Exact match"]
    assert printed["headlines"][0]["value"] == 1.0
    assert printed["curves"]["loss"][-1] == [31, "NaN"]
    assert printed["headlines"][-1] == {"name": "Cost", "value": 2.9, "text": "$2.90"}


def test_a_run_without_anything_is_a_record_too(tmp_path: Path) -> None:
    view = read_view(tmp_path)
    assert (view["state"], view["step"], view["headlines"]) == ("starting", None, [])
    assert json.dumps(view)


@pytest.mark.parametrize("wrong", [{"config": [1]}, {"model": "x"}, {"data": "x", "hardware": 3}])
def test_odd_shapes_are_left_out(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "run.json").write_text(json.dumps(wrong))
    odd = {"before": 3, "example": "x", "paths": [1], "cost": 2, "forecast": {}, "stages": 4}
    (tmp_path / "summary.json").write_text(json.dumps({**odd, "status": "odd"}))
    assert views_of(read_view(tmp_path))


def test_the_speed_of_a_run_that_has_ended_is_that_of_all_its_steps(tmp_path: Path) -> None:
    lines = [(1, 1.0, 100.0), (2, 3.0, 300.0), (3, 2.0, float("nan"))]
    records = [
        {"step": step, "seconds": seconds, "tokens_per_second": rate}
        for step, seconds, rate in lines
    ]
    directory = write_run(tmp_path)
    add(directory, *records[:2])
    speeds = [read_view(directory)["headlines"][0]["value"]]
    (directory / "summary.json").write_text('{"status": "finished"}')
    add(directory, records[2])
    speeds.append(read_view(directory)["headlines"][0]["value"])
    assert speeds == [300.0, 250.0]


@pytest.mark.parametrize(("steps", "more"), [(8e8, True), (8.99e8, False)])
def test_each_of_the_two_peaks_of_memory_is_explained(
    tmp_path: Path, steps: float, more: bool
) -> None:
    forecast = [{"what": "peak_memory_bytes", "foretold": 7e8, "was": steps}]
    view = read_view(
        a_training(tmp_path, status="finished", peak_memory_bytes=9e8, forecast=forecast)
    )
    [peak] = [line for line in view["headlines"] if line["name"] == "Peak memory"]
    assert peak["text"] == "858.3 MiB"
    expected = "monitoring.peak_memory_scope(memory=762.9 MiB)" if more else None
    assert peak.get("more") == expected


def test_an_alert_has_its_time_and_the_model_its_whole_size(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    record = json.loads((run / "run.json").read_text())
    model = {"name": "m", "num_parameters": 20_000_000, "num_trainable": 1_000_000}
    (run / "run.json").write_text(json.dumps({**record, "model": model}))
    (run / ALERTS_FILE).parent.mkdir(parents=True)
    alert = {"time": 12.5, "severity": "warning", "step": 3, "message": "hot"}
    (run / ALERTS_FILE).write_text(json.dumps(alert) + "\n")
    view = read_view(run)
    expected = {"time": 12.5, "severity": "warning", "text": "step 3: hot", "is_over": False}
    assert view["alerts"] == [expected]
    assert "20.00 M parameters, of which 1.00 M are trained" in view["subject"]
