"""The record of a run says what every view shows, as JSON, whatever state the run is in."""

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from colab.panel_page import panel_html
from infrastructure.commands.main import main
from infrastructure.monitoring.drawing.formatting import format_moment
from infrastructure.monitoring.records.run_view import RunView, read_view
from infrastructure.monitoring.report.report import render_report
from infrastructure.monitoring.training_monitor import ALERTS_FILE
from infrastructure.monitoring.watch import frame
from tests.monitoring.written_run import (
    RUN,
    a_training,
    add,
    evaluation,
    sample,
    step_record,
    system_file,
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
            ["Finished at step 40, after 2 min 06 s.", "3 →", "0% →", "50.0%"],
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
        "step 29: 93% is above 90%",
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


def test_the_view_of_a_finished_run_has_every_fact_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(
        Path("runs"),
        **{"status": "finished", "steps": 3, "seconds": 75, "error": "E: late"},
        **{"loss_function": "dft", "final_step": 2, "peak_memory_bytes": 9 * 2**30},
        before={"eval_loss": 2.0, "exact_match": {"all": 0.25}, "eval_rewards/accuracies": 0.5},
        after={"eval_loss": 1.5, "exact_match": {"all": 0.5}, "eval_rewards/accuracies": 0.75},
        example={"prompt": "p", "expected": None},
        forecast=[{"what": "seconds"}, 3],
        stages=[{"name": "load"}, 3],
        went_on=[{"step": 1}],
        paths={"model": "runs/20260101-a/final"},
        cost={"text": "1 EUR", "amount": 1.0},
        backup={"published": "hf://me/m"},
        **{"has_context": True, "system_prompt": "Be brief"},
    )
    config = {**RUN["config"], "run_name": {"value": "mine"}, "old": 3}  # type: ignore[dict-item]
    history = [{"step": 1, "data": {"lines": ["other"]}}, {"step": 2}]
    record = {
        **json.loads((run / "run.json").read_text()),
        **{"config": config, "precision": "bf16", "hardware": {"gpus": []}},
        **{"versions": {"torch": "2"}, "decided": {"batch": {"value": 3}}, "history": history},
        **{"data": {"lines": ["first"], "num_rows": 4}, "command": ["temper", "train", "a b"]},
    }
    copies = {"place": "drive:x", "confirmed_step": 2, "saved_at": 1000.0, "newest_step": 2}
    (run / "checkpoints").mkdir()
    (run / "final").mkdir()
    for name, content in {
        "run.json": record,
        "data_report.json": {"num_used": 3},
        "checks.json": [{"step": 0}],
        "quantum.json": {"solver": "a"},
        "checkpoints/backup.json": copies,
        "final/tokenizer_config.json": {},
    }.items():
        (run / name).write_text(json.dumps(content))
    add(run, *[step_record(step, 3.0 - step) for step in (1, 2, 3)], evaluation(3, 1.75))
    add(run, {"step": 2, "kind": "spike"}, file="logs/errors/errors.jsonl")
    for alert in ({"time": 1.0, "rule": "hot", "severity": "critical"}, {"rule": "cold"}):
        add(run, {**alert, "ended_at": 3.0}, file=system_file("alerts"))
    for seconds in (0, 2, 100):
        load = {"time": 1000.0 + seconds, "cpu_percent": 50.0}
        add(run, load, file=system_file("system"))
    os.utime(run / "metrics.jsonl", (2000.0, 2000.0))
    view: dict[str, Any] = {**read_view(run)}
    curves = view.pop("curves")
    assert (curves["loss"], curves["eval_loss"]) == ([(1, 2.0), (2, 1.0), (3, 0.0)], [(3, 1.75)])
    began = format_moment(RUN["created"])  # type: ignore[arg-type]
    backed_up = "monitoring.backup_step_confirmed(step=2, place=drive:x)"
    assert view == {
        "run_id": "20260101-a",
        "title": "mine",
        "directory": "runs/20260101-a",
        "subject": "Model: my-llama · 3.00 M parameters, of which 1.50 M are trained"
        f" · data: chats.jsonl · started {began} · run 20260101-a",
        "state": "finished",
        "state_text": "Finished at step 3monitoring.total_step_time(duration=1.5 s)"
        "monitoring.resumed_times(times=monitoring.once(), cause=monitoring.a_stop(),"
        " start=monitoring.resumed_from_step(step=1), restored=).",
        "is_over": True,
        "written_at": 2000.0,
        "step": 3,
        "total_steps": 40,
        "share_done": 0.075,
        "progress": "step 3 of 40 · 7.5%",
        "times": "monitoring.steps_took(duration=1.5 s)",
        "seconds_trained": 1.5,
        "seconds_left": None,
        "headlines": [
            {
                **{"name": "Held-out loss (dft)", "value": 1.5, "text": "1.500", "before": "2"},
                "more": "run.model_of_best_step(step=2)",
            },
            {"name": "Pairs ranked correctly", "value": 0.75, "text": "75.0%", "before": "50.0%"},
            {"name": "Exact match", "value": 0.5, "text": "50.0%", "before": "25.0%"},
            {"name": "Tokens per second", "value": 200.0, "text": "200"},
            {"name": "Time per step", "value": 0.5, "text": "500 ms"},
            {"name": "Tokens", "value": 300.0, "text": "300"},
            {"name": "Peak memory", "value": 9 * 2**30, "text": "9.0 GiB"},
            {"name": "Cost", "value": 1.0, "text": "1 EUR"},
        ],
        "error": "E: late",
        "problems": [],
        "before_after": [
            ("held-out loss (dft)", "2", "1.500", "-25.0%"),
            ("pairs ranked correctly (higher is better)", "50.0%", "75.0%", "+25.0 points"),
            ("exact match", "25.0%", "50.0%", "+25.0 points"),
        ],
        "example": {"prompt": "p"},
        "evaluated": ["epoch", "eval_loss", "kind", "step"],
        "alerts": [
            {"time": 1.0, "severity": "critical", "text": "hot (over)", "is_over": True},
            {"time": None, "severity": "", "text": "cold (over)", "is_over": True},
        ],
        "errors": [{"step": 2, "kind": "spike", "text": "step 2: spike"}],
        "num_errors": 1,
        "backup": {
            **{"place": "drive:x", "confirmed_step": 2, "saved_at": 1000.0},
            **{"published": "hf://me/m", "state": backed_up, "text": backed_up},
        },
        "machine": {
            "meters": [],
            "curves": {"cpu_percent": [(1000.0, 50.0), (1002.0, 50.0), (1002.0, 50.0)]},
            "pauses": [(1002.0, 1100.0)],
            "is_watched": True,
        },
        "data": {"lines": ["other"]},
        "earlier_data": [(1, {"lines": ["first"], "num_rows": 4, "num_used": 3})],
        "history": history,
        "of_features": {
            "logs/performance/profile.json": {},
            "quantum.json": {"solver": "a"},
            "stackwise.json": {},
        },
        "checks": [{"step": 0}],
        "forecast": [{"what": "seconds"}],
        "decided": {"batch": {"value": 3}},
        "stages": [{"name": "load"}],
        "num_sessions": 2,
        "command": "temper train 'a b'",
        "config": {
            "data.path": ("chats.jsonl", "argument DATA"),
            "training.seed": (0, "default"),
            "run_name": ("mine", ""),
            "old": (3, ""),
        },
        "hardware": {"gpus": [], "precision": "bf16"},
        "versions": {"torch": "2"},
        "paths": [
            ("model", "runs/20260101-a/final", "monitoring.path_final()"),
            *(
                (name, f"runs/20260101-a/{name}", f"monitoring.path_{code}()")
                for name, code in (
                    ("checkpoints", "checkpoints"),
                    ("metrics.jsonl", "metrics"),
                    ("logs", "logs"),
                    ("run.json", "run"),
                    ("summary.json", "summary"),
                )
            ),
        ],
        "next_steps": [
            (
                "monitoring.next_ask()",
                "temper ask runs/20260101-a/final --context TEXT --system 'Be brief'",
            ),
            ("monitoring.next_evaluate_new_rows()", "temper eval runs/20260101-a/final DATA"),
        ],
    }
    (run / "final/processor_config.json").touch()  # it sees, and `temper ask` needs a picture
    assert [code for code, _ in read_view(run)["next_steps"]] == [view["next_steps"][1][0]]


def test_the_view_of_a_run_that_trains_has_what_is_known_now(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    losses = (2.5, 1.25, float("nan"), 1.75)
    add(run, *[step_record(step, 3.0) for step in (1, 2)])
    add(run, *[evaluation(step, loss) for step, loss in enumerate(losses)])
    add(run, sample(0, step=3, gpus=[]), file=system_file("system"))
    (run / "checkpoints").mkdir()
    (run / "checkpoints/backup.json").write_text('{"place": "", "published": 3}')
    record = json.loads((run / "run.json").read_text())
    record["config"]["training.loss"] = "dft"
    (run / "run.json").write_text(json.dumps({**record, "command": "x" * 4001}))
    view = read_view(run)
    assert [(line["name"], line["text"], line.get("more")) for line in view["headlines"]][:2] == [
        ("Loss", "3", None),
        ("Held-out loss (dft)", "1.750", "best 1.250"),
    ]
    assert [meter["name"] for meter in view["machine"]["meters"]] == ["processor", "memory"]
    assert (view["backup"]["place"], view["backup"]["published"]) == (None, "3")
    assert (view["before_after"], view["seconds_left"]) == ([], 18.5)
    assert view["command"] == f"{'x' * 4000} … (1 more characters)"
    (run / "checkpoints/backup.json").write_text(
        json.dumps({"place": "b", "confirmed_step": 1, "saved_at": time.time() - 75})
    )
    backup = read_view(run)["backup"]
    at_risk = "monitoring.work_at_risk(duration=1 min 15 s)"
    assert backup["text"] == f"{backup['state']}{at_risk}"


def test_of_rewards_and_of_a_method_the_most_important_figure_is_a_headline(tmp_path: Path) -> None:
    """A loss of rewards has no meaning, and no pair is ranked where all are tied."""
    after = {"eval_loss": 0.1, "eval_reward": 0.5, "eval_reward_std": 0.25}
    run = write_run(tmp_path, status="finished", before={"eval_reward": 0.25}, after=after)
    assert read_view(run)["headlines"] == [
        {"name": "Mean reward", "value": 0.5, "text": "0.5000", "before": "0.2500"}
    ]
