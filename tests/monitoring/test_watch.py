"""The terminal view, in a real terminal of its own and where there is none."""

import io
import json
import math
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infrastructure.monitoring.records.run_view import RunView, read_view
from infrastructure.monitoring.watch import frame, sparkline, status_line, watch
from tests.monitoring.written_run import (
    a_training,
    add,
    step_record,
    write_run,
)

ROOT = Path(__file__).resolve().parents[2]


def shown(run: RunView, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(frame(run, width))
    return console.export_text()


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_frame_fits_its_terminal(tmp_path: Path, width: int) -> None:
    run = read_view(a_training(tmp_path))
    assert max(map(len, shown(run, width).splitlines())) <= width


def test_text_of_a_run_cannot_steer_the_terminal(tmp_path: Path) -> None:
    directory = a_training(tmp_path)
    evil = {"step": 31, "kind": "\x1b[2Jgone", "message": "[bold]x[/bold]\x07"}
    add(directory, evil, file="logs/errors/errors.jsonl")
    run = read_view(directory)
    text = shown(run)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]x[/bold]" in text


def test_a_sparkline_shows_shape_and_what_is_not_finite() -> None:
    assert sparkline([(step, step) for step in range(8)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([(0, 2.0), (1, math.nan), (2, 1.0)], 8) == "█×▁"
    assert sparkline([(0, 2.0), (1, 2.0)], 8) == "▅▅"
    assert sparkline([(0, math.nan)], 8) == "×"
    assert len(sparkline([(step, step % 7) for step in range(1000)], 30)) == 30


def test_a_column_of_a_sparkline_is_the_mean_of_its_points() -> None:
    points = [(step, float(value)) for step, value in enumerate([0, 0, 4, 6, 10, 30, 10, 10])]
    assert sparkline(points, 4) == "▁▃█▅"  # means 0, 5, 20 and 10
    assert (sparkline(points, 0), sparkline([], 4), sparkline(points[:3], 2)) == ("", "", "▁█")


def test_a_frame_has_its_parts_in_order_and_in_their_styles(tmp_path: Path) -> None:
    directory = write_run(tmp_path, error="E: it broke")
    add(directory, *[step_record(step, 3.0 - step) for step in (1, 2)])
    for number, severity in enumerate(["critical", "info", "warning", "critical", "odd"]):
        alert = {"time": 1.0, "rule": f"rule {number}", "severity": severity}
        add(directory, alert, file="logs/system/alerts.jsonl")
        add(directory, {"step": number, "kind": "spike"}, file="logs/errors/errors.jsonl")
    ended = {"time": 2.0, "rule": "rule 3", "state": "ended"}
    add(directory, ended, file="logs/system/alerts.jsonl")
    (directory / "checks.json").write_text("{}")
    view = read_view(directory)
    drawn: Any = frame(view, 100)
    lines = [(text.plain, str(text.style)) for text in drawn.renderables]
    assert lines == [
        (view["title"], "bold"),
        (view["state_text"], "bold cyan"),
        (status_line(view), ""),
        ("█▁", "cyan"),
        ("monitoring.checkpoints_not_backed_up()", "dim"),
        ("monitoring.file_content_unexpected(name=checks.json)", "yellow"),
        ("E: it broke", "red"),
        *(("rule 1", "dim"), ("rule 2", "yellow"), ("rule 3 (over)", "dim"), ("rule 4", "yellow")),
        *((f"step {number}: spike", "yellow") for number in range(1, 5)),
        ("monitoring.ctrl_c_exits_watch()", "dim"),
    ]
    assert status_line(view).split(" · ") == [
        *("step 2 of 40", "5.0%", "loss 1", "tokens per second 200", "time per step 500 ms"),
        *("monitoring.time_left(duration=19 s)", "monitoring.steps_took(duration=1.0 s)"),
    ]
    (directory / "summary.json").write_text('{"status": "finished"}')
    drawn = frame(read_view(directory), 100)
    styles = {text.plain: str(text.style) for text in drawn.renderables}
    assert "bold green" in styles.values()
    assert not {"monitoring.ctrl_c_exits_watch()", "E: it broke"} & {*styles}


def test_without_a_terminal_a_line_shows_each_state_until_the_end(tmp_path: Path) -> None:
    directory = a_training(tmp_path)
    out = io.StringIO()

    def finish(_: float) -> None:
        add(directory, *[step_record(step, 0.5) for step in range(31, 41)])
        (directory / "summary.json").write_text('{"status": "finished", "total_steps": 40}')

    assert watch(directory, console=Console(file=out, width=40), sleep=finish) == "finished"
    first, last = out.getvalue().splitlines()
    assert first.startswith("step 30 of 40 · 75.0% · loss 1.069 · held-out loss 1.250")
    assert last == (
        "finished · step 40 of 40 · 100% · loss 0.5000 · held-out loss 1.250"
        " · tokens per second 200"
    )


@pytest.mark.parametrize(
    ("interval_seconds", "steps"),
    [(None, [*range(1, 8), 9, 11, 13, 16, 19, 23]), (10.0, [1, 2, 3, 4])],
)
def test_lines_in_a_pipe_come_as_often_as_wanted_or_seldomer_the_longer_it_takes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interval_seconds: float | None,
    steps: list[int],
) -> None:
    directory = write_run(tmp_path)
    add(directory, step_record(1, 0.5))
    clock, waits, out = [0.0], [0], io.StringIO()
    monkeypatch.setattr("infrastructure.monitoring.watch.time.monotonic", lambda: clock[0])

    def pass_time(seconds: float) -> None:
        clock[0], waits[0] = clock[0] + seconds, waits[0] + 1
        if waits[0] == (24 if interval_seconds is None else 4):
            raise InterruptedError
        add(directory, step_record(1 + waits[0], 0.5))

    with pytest.raises(InterruptedError):
        watch(
            directory,
            interval_seconds=interval_seconds,
            console=Console(file=out, width=40),
            sleep=pass_time,
        )
    assert [int(line.split()[1]) for line in out.getvalue().splitlines()] == steps


def test_a_run_that_was_broken_off_is_waited_for_by_who_is_patient_only(tmp_path: Path) -> None:
    directory = a_training(tmp_path)
    (directory / "trained_by").write_text(f"process 1 on {os.uname().nodename} ended\n")
    out = io.StringIO()
    console = Console(file=out, width=40)
    assert watch(directory, console=console, is_patient=False) == "interrupted"
    assert "waiting" not in out.getvalue()
    with pytest.raises(InterruptedError):
        watch(directory, console=console, sleep=enough)
    last = out.getvalue().splitlines()[-1]
    assert last.startswith("monitoring.waiting_for_resume(next_step=monitoring.next_resume(): ")
    assert f": temper resume {directory}" in last


def test_a_run_that_was_broken_off_is_shown_with_what_goes_on_with_it(tmp_path: Path) -> None:
    directory = a_training(tmp_path)
    assert "temper resume" not in shown(read_view(directory))
    (directory / "trained_by").write_text(f"process 1 on {os.uname().nodename} ended\n")
    assert "monitoring.next_resume(): temper resume" in shown(read_view(directory))
    record = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps({**record, "trainer": {}}))
    text = shown(read_view(directory))
    assert "monitoring.next_run_own_script" in text
    assert "temper resume" not in text


def enough(seconds: float) -> None:
    raise InterruptedError


def test_a_run_without_a_step_is_shown_as_one(tmp_path: Path) -> None:
    run = read_view(write_run(tmp_path))
    assert status_line(run) == "monitoring.no_step_yet()"
    assert "monitoring.no_step_yet()" in shown(run)


def test_looks_must_have_time_between_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"monitoring\.watch_interval_not_positive.*seconds=0"):
        watch(write_run(tmp_path), interval_seconds=0)


def test_in_a_real_terminal_the_frame_is_drawn_again_until_the_run_ends(tmp_path: Path) -> None:
    directory = a_training(tmp_path)
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 1 << 16):
                seen.extend(data)
        except OSError:  # how a terminal ends on Linux
            return

    reader = threading.Thread(target=read)
    command = [sys.executable, "-m", "infrastructure", "watch", str(directory), "--every", "0.05"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "50"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    reader.start()
    wait_until(lambda: b"step 30 of 40" in seen)
    add(directory, step_record(35, 0.5))
    wait_until(lambda: b"step 35 of 40" in seen)
    (directory / "summary.json").write_text('{"status": "failed", "error": "E: it broke"}')
    assert process.wait(timeout=60) == 1
    reader.join()
    os.close(ours)
    assert b"E: it broke" in seen


def wait_until(is_true: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
