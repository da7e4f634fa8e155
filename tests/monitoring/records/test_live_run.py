"""A run is followed through its life: preparing, training, a kill, going on, the end."""

import json
import math
import os
import random
import re
import shutil
import time
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from infrastructure.core.files import write_json, write_text
from infrastructure.monitoring.drawing.metrics_file import encode_record
from infrastructure.monitoring.records.live_run import LiveRun, state_of
from infrastructure.monitoring.records.machine_history import machine_charts
from infrastructure.monitoring.records.run_owner import (
    TrainerProcess,
    announce_stop,
    leave_trainer,
    write_trainer,
)
from infrastructure.monitoring.records.run_reader import ERRORS_FILE, RunFacts
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.records.status_text import time_words
from infrastructure.monitoring.training_monitor import PERFORMANCE_FILE
from infrastructure.monitoring.watching.alerts import AlertRule, AlertWatch
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


def test_a_run_is_read_look_by_look(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    run = LiveRun(directory)
    assert (run.state, run.step, run.share_done, run.written_at) == ("running", None, None, None)
    add(directory, *falling(1, 10))
    run.refresh()
    assert (run.step, run.total_steps, run.share_done) == (10, 40, 0.25)
    run.refresh()
    add(directory, *falling(11, 20), evaluation(20, 1.5))
    run.refresh()
    assert (run.step, run.evaluated & {"eval_loss", "loss"}) == (20, {"eval_loss"})
    assert len(run.curves["loss"]) == 20
    assert run.seconds_trained == 10.0
    run.close()


def test_time_left_is_that_of_the_steps_to_come_at_the_speed_of_now(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    slow = [step_record(step, seconds=100.0) for step in range(1, 10)]
    quick = [step_record(step, seconds=4.0) for step in range(12, 42, 2)]  # the first: 3 steps
    add(directory, *slow, *quick)
    run = LiveRun(directory)
    assert run.seconds_per_step == 15 * 4.0 / (3 + 14 * 2)
    assert run.step == 40
    assert run.seconds_left == 0.0
    assert (
        time_words(run) == "monitoring.steps_took(duration=16 min 00 s)"
    )  # and not "about 0 s left"
    write_json(directory / "summary.json", {"status": "finished", "steps": 40})
    run.refresh()
    assert run.seconds_per_step == (9 * 100.0 + 15 * 4.0) / 40  # beside tokens a second of all
    run.close()


def test_a_run_that_went_back_forgets_the_steps_that_are_done_again(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    add(directory, *falling(1, 20), evaluation(20, 1.0))
    run = LiveRun(directory)
    kept = b"".join(map(encode_record, falling(1, 12)))
    write_text(directory / "metrics.jsonl", kept.decode())
    run.refresh()
    assert (run.step, len(run.curves["loss"]), run.seconds_trained) == (12, 12, 6.0)
    assert (run.evaluated, run.seconds_rated, run.num_rated) == (set(), 6.0, 1200.0)
    run.close()


def test_the_monitor_may_know_a_newer_step_than_the_log(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    add(directory, *falling(1, 10))
    add(directory, sample(-5.0, step=17), file=system_file("system"))
    run = LiveRun(directory)
    assert run.step == 17
    os.utime(directory / "metrics.jsonl", (time.time() + 60, time.time() + 60))
    add(directory, step_record(18))
    os.utime(directory / "metrics.jsonl", (time.time() + 60, time.time() + 60))
    run.refresh()
    assert run.step == 18
    run.close()


def test_a_run_that_somebody_goes_on_with_is_prepared_again(tmp_path: Path) -> None:
    directory = write_run(tmp_path, status="stopped")
    run = LiveRun(directory)
    assert run.state == "stopped"
    write_trainer(directory)
    run.refresh()
    assert (run.state, run.has_ended) == ("starting", False)
    leave_trainer(directory)  # it could not go on
    run.refresh()
    assert run.state == "stopped"
    run.close()


def test_a_killed_run_that_somebody_goes_on_with_is_prepared_and_has_no_time_left(
    tmp_path: Path,
) -> None:
    directory = write_run(tmp_path)
    (directory / "summary.json").write_text('{"status": "running", "total_steps": 40}')
    add(directory, *falling(1, 10))
    long_ago = time.time() - 60
    os.utime(directory / "summary.json", (long_ago, long_ago))  # of the session that was killed
    write_trainer(directory)
    run = LiveRun(directory)
    assert run.state == "starting"
    assert "left" not in time_words(run)
    os.utime(directory / "summary.json")
    run.refresh()
    assert run.state == "running"
    assert "left" in time_words(run)
    run.close()


def test_the_peak_is_the_highest_memory_that_anybody_saw(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    add(directory, *[step_record(n) | {"memory_bytes": b} for n, b in ((1, 7e8), (2, 5e8))])
    run = LiveRun(directory)
    assert run.peak_memory_bytes == 7e8
    rows = [{"what": "peak_memory_bytes", "was": 9e8}, {"what": "seconds", "was": 1e12}]
    summary = {"memory": {"highest_bytes": 8e8}, "forecast": rows}
    for part, peak in (("memory", 8e8), ("forecast", 9e8)):
        text = json.dumps({"status": "finished", part: summary[part]})
        (directory / "summary.json").write_text(text)
        run.refresh()
        assert run.peak_memory_bytes == peak
    run.close()


@pytest.mark.parametrize(
    ("seconds", "age", "is_silent"),
    [(0.5, 580, False), (0.5, 610, True), (100.0, 980, False), (100.0, 1010, True)],
)
def test_a_run_that_should_train_and_writes_nothing_is_silent(
    seconds: float, age: float, is_silent: bool, tmp_path: Path
) -> None:
    directory = write_run(tmp_path)
    add(directory, *[step_record(step, seconds=seconds) for step in range(1, 4)])
    moment = time.time() - age
    os.utime(directory / "metrics.jsonl", (moment, moment))
    with closing(LiveRun(directory)) as run:
        assert run.is_silent is is_silent
        add(directory, sample(5), file=system_file("system"))
        run.refresh()
        assert (run.is_silent, run.written_at) == (False, run.machine.last["time"])
        write_json(directory / "summary.json", {"status": "failed"})
        add(directory, sample(2000), file=system_file("system"))
        run.refresh()
        assert not run.is_silent


def test_the_steps_and_the_time_to_come_stay_within_the_run(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    add(directory, *falling(1, 30))
    with closing(LiveRun(directory)) as run:
        left = "monitoring.time_left(duration=5.0 s) · monitoring.steps_took(duration=15 s)"
        assert (run.share_done, run.seconds_left, time_words(run)) == (0.75, 5.0, left)
        add(directory, step_record(42))
        run.refresh()
        assert (run.share_done, run.seconds_left) == (1.0, 0.0)
        write_json(directory / "summary.json", {"status": "running", "total_steps": 0})
        run.refresh()
        assert (run.total_steps, run.share_done, run.seconds_left) == (None, None, None)


def test_each_change_is_read_once(tmp_path: Path) -> None:
    error = {"step": 1, "kind": "spike"}
    with closing(LiveRun(tmp_path)) as run:
        for change in (
            lambda: write_json(tmp_path / "data_report.json", {"num_used": 3}),
            lambda: write_trainer(tmp_path),
            lambda: leave_trainer(tmp_path),
            lambda: add(tmp_path, error, file=ERRORS_FILE),
            lambda: add(tmp_path, step_record(1)),
            lambda: add(tmp_path, sample(0), file=system_file("system")),
            lambda: (tmp_path / "data_report.json").unlink(),
        ):
            change()
            run.refresh()
            run.refresh()
        assert ([*run.errors], run.num_errors) == ([error], 1)
        assert (run.step, len(run.records), run.trainer and run.trainer.is_alive) == (1, 1, False)
        assert run.facts.object_in("data_report.json") == {}
        shutil.rmtree(tmp_path)
        gone = re.escape(f"monitoring.not_a_run_directory(directory={tmp_path})")
        with pytest.raises(ValueError, match=gone):
            run.refresh()


@pytest.mark.parametrize(
    ("status", "is_alive", "since", "state"),
    [
        ("finished", True, 1001.0, "finished"),
        ("failed", True, 1001.0, "starting"),
        ("failed", True, 999.0, "failed"),
        ("failed", False, 1001.0, "failed"),
        ("running", True, 999.0, "running"),
        ("running", None, 1001.0, "running"),
        ("running", False, 999.0, "interrupted"),
        ("announced", False, 999.0, "stopped"),
        ("brought back", None, None, "interrupted"),
        ("brought back", None, 999.0, "running"),
        (None, True, 999.0, "starting"),
    ],
)
def test_the_state_is_that_of_the_files_and_of_the_process(
    status: str | None, is_alive: bool | None, since: float | None, state: str, tmp_path: Path
) -> None:
    facts = RunFacts(tmp_path)
    if status == "announced":
        announce_stop(tmp_path, 7)
    if status == "brought back":
        facts.files["run.json"] = {"brought_back": {"place": "drive:x"}}
    if status is not None:
        known = status if status in ("finished", "failed") else "running"
        facts.files["summary.json"] = {"status": known}
        (tmp_path / "summary.json").touch()
        os.utime(tmp_path / "summary.json", (1000.0, 1000.0))
    machine = os.uname().nodename
    trainer = None if since is None else TrainerProcess(7, machine, is_alive, since)
    assert state_of(facts, trainer) == state


def test_what_cannot_be_read_is_reported_and_the_rest_is_shown(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    (directory / "run.json").write_text("{")
    (directory / "metrics.jsonl").write_text('???\n{"step": 3, "loss": "NaN"}\n')
    add(directory, {"kind": "spike"}, file=ERRORS_FILE)
    (directory / ERRORS_FILE).write_text("???\n[]\n")
    run = LiveRun(directory)
    assert run.step == 3
    assert "monitoring.file_unreadable(name=run.json" in run.problems[0]
    assert run.problems[1:] == [
        "monitoring.damaged_lines_skipped(count=1, file=metrics.jsonl)",
        "monitoring.damaged_lines_skipped(count=2, file=errors.jsonl)",
        "Not finite: loss: NaN at step 3.",
    ]
    run.close()


def test_the_loss_keeps_more_points_than_other_curves(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    add(directory, *[{"step": step, "loss": step % 7, "share": step % 7} for step in range(2500)])
    with closing(LiveRun(directory)) as run:
        num_points = {key: len(points) for key, points in run.curves.items()}
        num_records = len(run.records)
    assert 1000 < num_points["loss"] <= 2064
    assert 600 < num_points["share"] <= 864
    assert num_records == 400


@slow
def test_memory_stays_bounded_and_no_spike_disappears(tmp_path: Path) -> None:
    directory = write_run(tmp_path, total_steps=300_000)
    generator = random.Random(0)
    run = LiveRun(directory)
    sizes = []
    tracemalloc.start()
    for first in range(1, 100_001, 20_000):
        records = [
            {"step": step, "loss": generator.random()} for step in range(first, first + 20_000)
        ]
        if first == 40_001:
            records[100]["loss"], records[200]["loss"] = 77.0, math.nan
        add(directory, *records)
        del records
        run.refresh()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    values = [value for _, value in run.curves["loss"]]
    assert max(value for value in values if math.isfinite(value)) == 77.0
    assert any(math.isnan(value) for value in values)
    assert len(values) <= 2000
    assert sizes[-1] < sizes[0] + 500_000
    run.close()


def test_an_alert_that_is_over_is_shown_as_over(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    watch = AlertWatch([AlertRule("gpu_memory", "memory", 90.0, "GPU 0 is full")])
    alerts = []
    for moment, value in ((1.0, 95.0), (2.0, 50.0)):
        alerts += watch.check({"memory": value}, moment, step=7, subject="GPU 0")
    add(directory, alerts[0].record(), file=system_file("alerts"))
    run = LiveRun(directory)
    assert [(a["message"], "ended_at" in a) for a in run.alerts] == [("GPU 0 is full", False)]
    add(directory, alerts[1].record(), file=system_file("alerts"))
    run.refresh()
    assert [(a["message"], a["ended_at"]) for a in run.alerts] == [("GPU 0 is full", 2.0)]
    more = [
        {"time": time, "rule": rule, "subject": "GPU 0", "state": state}
        for time, rule, state in (
            (3.0, "heat", "raised"),
            (4.0, "gpu_memory", "raised"),
            (5.0, "gpu_memory", "ended"),
            (6.0, "unknown", "ended"),
        )
    ]
    add(directory, *more, file=system_file("alerts"))
    run.refresh()
    assert [alert.get("ended_at") for alert in run.alerts] == [2.0, None, 5.0]
    run.close()


def test_the_end_of_an_alert_is_that_of_its_subject_alone(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    alerts = [
        {"time": time, "rule": "gpu_memory", "subject": f"GPU {number}", "state": state}
        for time, number, state in (
            (1.0, 0, "raised"),
            (2.0, 1, "raised"),
            (3.0, 2, "raised"),
            (4.0, 1, "ended"),
            (5.0, 0, "ended"),
        )
    ]
    add(directory, *alerts, file=system_file("alerts"))
    with closing(LiveRun(directory)) as run:
        assert [alert.get("ended_at") for alert in run.alerts] == [5.0, 4.0, None]


def test_how_well_the_steps_use_the_machine_is_among_its_curves(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    for second in range(3):
        use = {"time": 1000.0 + second, "step": second, "data_wait_percent": 5.0 + second}
        add(directory, {**use, "model_flops_utilization": 0.4}, file=str(PERFORMANCE_FILE))
    run = LiveRun(directory)
    curves = read_view(directory)["machine"]["curves"]
    assert [share for _, share in curves["model_flops_percent"]] == [40.0] * 3
    titles = [chart.title for chart in machine_charts(curves).values()]
    assert titles == ["Waiting for data, %", "Share of peak FLOPS used (MFU), %"]
    run.close()
