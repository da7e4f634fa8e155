"""The real command, whose terminal is closed, whose pipe nobody reads, whose disk is full."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from infrastructure.monitoring.logging_config import OUTPUT_FILE
from tests.deployment.runs import ROOT, newest_step, runs_of, when_saved, write_settings
from tests.forks import forked_python
from tests.slow import slow

COMMAND = [sys.executable, "-m", "infrastructure", "train"]


def take_terminal(ignores_hangup: bool) -> None:
    """What a login does: the terminal at its input is that of its session."""
    os.setsid()
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    if ignores_hangup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def at_a_terminal(folder: Path, ignores_hangup: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A training in a session of its own, whose terminal is closed at the end."""
    master, slave = pty.openpty()
    process = forked_python(
        COMMAND,
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=partial(take_terminal, ignores_hangup),
        text=True,
    )
    os.close(slave)
    try:
        yield process
    finally:
        os.close(master)


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_a_closed_terminal_saves_and_ends_with_129(tmp_path: Path) -> None:
    write_settings(tmp_path, num_epochs=4000)
    with at_a_terminal(tmp_path) as process:
        run = when_saved(tmp_path, 3, process)
    assert process.wait(120) == 129
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["signal"]) == ("stopped", "SIGHUP")
    assert newest_step(run) == summary["steps"] >= 3
    assert "deployment.stopped_at_step" in (run / OUTPUT_FILE).read_text()


@slow
def test_whoever_has_hangup_ignored_trains_on(tmp_path: Path) -> None:
    """As under nohup."""
    write_settings(tmp_path)
    with at_a_terminal(tmp_path, ignores_hangup=True) as process:
        run = when_saved(tmp_path, 1, process)
    assert process.wait(120) == 0
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert "Where everything lies" in (run / OUTPUT_FILE).read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_nobody_takes_ends_no_training(tmp_path: Path) -> None:
    """Standard output is `| head -1`, standard error a full disk."""
    write_settings(tmp_path, max_steps=3)
    with Path("/dev/full").open("wb") as full:
        process = forked_python(COMMAND, cwd=tmp_path, stdout=subprocess.PIPE, stderr=full)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(120) == 0
    (run,) = runs_of(tmp_path)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    kept = (run / OUTPUT_FILE).read_text()
    assert "run.files_head(" in kept
    assert "training.checkpoint_saved(step=3)" in kept


def test_output_that_a_command_could_not_write_is_a_failure(tmp_path: Path) -> None:
    """Its output is its work: a table that is cut off must not look whole."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND[:-1], "config"],
            cwd=tmp_path,
            env=variables(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "temper: [Errno 28] No space left on device\n")
