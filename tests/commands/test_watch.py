"""`temper watch` while a training is started in the same folder."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from infrastructure.commands import watch as watch_command
from infrastructure.commands.main import main
from infrastructure.core.exit_codes import ExitCode
from infrastructure.monitoring import watch
from infrastructure.monitoring.records.run_owner import computes, started_trainings
from tests.deployment.runs import start_temper
from tests.monitoring.written_run import add, step_record, write_run

# Takes a while, as PyTorch does; then it has a run, and when that was seen it is finished.
TRAINING = """
import json, os, sys, time
from pathlib import Path

def wait_for(path):
    while not path.exists():
        time.sleep(0.01)

wait_for(Path("is waited for"))
if sys.argv[1] == "train":
    run = Path("runs/20260102-new")
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"run_id": run.name}))
    (run / "trained_by").write_text(f"process {os.getpid()} on {os.uname().nodename}\\n")
    wait_for(Path("is shown"))
    (run / "summary.json").write_text(json.dumps({"status": "finished", "steps": 7}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One finished run lies in it."""
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "runs", name="20260101-old")
    (run / "summary.json").write_text(json.dumps({"status": "finished", "steps": 3}))
    (tmp_path / "temper").write_text(TRAINING)
    return tmp_path


@pytest.fixture
def started(folder: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "temper", request.param], cwd=folder) as process:
        yield process
        process.kill()


@pytest.fixture
def watching(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started goes on when the command waits for it, and then when it shows its run."""

    def sleep(seconds: float) -> None:
        (folder / "is waited for").touch()
        time.sleep(seconds)

    def watched(*arguments: Any) -> str:
        (folder / "is shown").touch()
        return watch.watch(*arguments)

    monkeypatch.setattr(watch_command, "time", SimpleNamespace(time=time.time, sleep=sleep))
    monkeypatch.setattr(watch_command, "watch", watched)


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("started", ["train"], indirect=True)
def test_the_run_of_a_training_that_is_being_started_is_waited_for(
    started: subprocess.Popen[bytes], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [process.pid for process in started_trainings(folder)] == [started.pid]
    assert started_trainings(folder / "runs") == []
    assert main(["watch", "--every", "0.05"]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert f"commands.waiting_for_starting_process(pid={started.pid})" in out
    assert "finished · step 7" in out
    assert "step 3" not in out


@pytest.mark.parametrize("started", ["train"], indirect=True)
def test_one_look_names_a_training_that_has_no_run_yet(
    started: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--once"]) == ExitCode.DONE
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"commands.starting_process_without_run(pid={started.pid})"
    assert any("Finished at step 3" in line for line in others), others


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("started", ["resume"], indirect=True)
def test_a_training_that_ends_without_a_run_is_not_waited_for_longer(
    started: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--every", "0.05"]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "commands.waiting_for_starting_process" in out
    assert "finished · step 3" in out
    assert "commands.watched_run_had_ended" in out


@pytest.mark.parametrize("started", ["list"], indirect=True)
def test_other_commands_are_not_waited_for(
    started: subprocess.Popen[bytes], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert started_trainings(folder) == []
    assert main(["watch"]) == ExitCode.DONE
    assert "commands.waiting" not in capsys.readouterr().out


def test_who_has_ended_computes_no_more() -> None:
    assert computes(psutil.Process(os.getpid()))
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        known = psutil.Process(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert not computes(known)
    assert not computes(known)


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
