"""`temper watch` and `temper dashboard` as commands, on a real run that trains beside them."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.deployment.runs import end, start_temper, when_saved, write_settings
from tests.monitoring.written_run import add, step_record, write_run
from tests.slow import slow


def address(dashboard: "subprocess.Popen[str]") -> str:
    assert dashboard.stdout is not None
    return str(json.loads(dashboard.stdout.readline())["url"])


def page_at(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@slow
def test_a_dashboard_shows_a_real_training_and_outlives_it(tmp_path: Path) -> None:
    write_settings(tmp_path, num_epochs=100)
    dashboard = start_temper("dashboard", "--json", "--port", "0", folder=tmp_path)
    url = address(dashboard)
    assert "monitoring.no_run_yet" in page_at(url)
    training = start_temper("train", folder=tmp_path)
    run = when_saved(tmp_path, 2, training)
    assert run.name in page_at(url)
    code, _, _ = end(training, signal.SIGINT)
    assert code == 130
    watched = start_temper("watch", folder=tmp_path)
    out, _ = watched.communicate(timeout=120)
    assert (watched.returncode, out.startswith("stopped before the end · step ")) == (0, True), out
    summary = json.loads((run / "summary.json").read_text())
    assert f"of {summary['total_steps']:,}" in out
    assert "Loss" in page_at(f"{url}?run={run.name}")
    assert end(dashboard, signal.SIGINT)[0] == 0


def test_watch_shows_a_run_once_and_ends_with_the_run(tmp_path: Path) -> None:
    add(write_run(tmp_path / "runs", "a", status="failed"), step_record(7))
    for flags, message in ((["--once"], "step 7 of 40"), ([], "failed · step 7 of 40")):
        watched = start_temper("watch", "a", *flags, folder=tmp_path)
        out, _ = watched.communicate(timeout=60)
        assert (watched.returncode, message in out) == (1, True)


def test_watch_waits_for_the_first_run(tmp_path: Path) -> None:
    watched = start_temper("watch", "--every", "0.1", folder=tmp_path)
    assert watched.stdout is not None
    assert watched.stdout.readline().startswith("commands.waiting_for_first_run")
    run = write_run(tmp_path / "elsewhere", "a", status="failed")
    add(run, step_record(7))
    (tmp_path / "elsewhere").rename(tmp_path / "runs")  # whole at once
    out, _ = watched.communicate(timeout=60)
    assert (watched.returncode, "failed · step 7 of 40" in out) == (1, True)


@pytest.mark.parametrize(
    ("command", "reported"),
    [
        (["watch", "--once"], "monitoring.no_runs"),
        (["dashboard", "nothing"], "what=run or checkpoint, name=nothing)"),
        (["dashboard", "--port", "99999"], "monitoring.dashboard_port_unavailable"),
        (["watch", "--every", "0"], "monitoring.watch_interval_not_positive(seconds=0.0)"),
        (
            ["watch", "--every", "x"],
            "argument --every: commands.value_must_be(kind=a number, value='x')",
        ),
    ],
)
def test_what_cannot_be_shown_is_wrong_input(
    tmp_path: Path, command: list[str], reported: str
) -> None:
    process = start_temper(*command, folder=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert reported in err


def test_to_a_person_the_dashboard_shows_where_it_is_and_who_may_see_it(tmp_path: Path) -> None:
    for host, last in (
        ("127.0.0.1", "commands.dashboard_path_behind_proxy"),
        ("0.0.0.0", "commands.dashboard_needs_token"),
    ):
        process = start_temper("dashboard", "--port", "0", "--host", host, folder=tmp_path)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert "commands.dashboard_address" in lines[0]
        assert ("token=" in lines[0]) == (host == "0.0.0.0")
        assert lines[1].startswith(last)
        assert end(process, signal.SIGINT)[0] == 0


def test_looking_loads_no_torch() -> None:
    probe = "import sys, infrastructure.commands.dashboard; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
