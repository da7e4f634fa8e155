"""Whether a training still lives is told from outside, without touching its lock."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from infrastructure.monitoring.records import run_owner
from infrastructure.monitoring.records.run_owner import (
    HOLDER_FILE,
    TrainerProcess,
    announce_stop,
    leave_trainer,
    read_trainer,
    started_trainings,
    take_announced_stop,
    was_stopped,
    write_trainer,
)

WRITES_AND_WAITS = """
import sys, time
from pathlib import Path
from infrastructure.monitoring.records.run_owner import write_trainer
write_trainer(Path(sys.argv[1]))
print("written", flush=True)
time.sleep(600)
"""


def test_who_was_stopped_is_not_one_that_was_killed(tmp_path: Path) -> None:
    write_trainer(tmp_path)
    leave_trainer(tmp_path)
    trainer = read_trainer(tmp_path)
    assert trainer is not None
    assert not was_stopped(tmp_path, trainer)
    announce_stop(tmp_path, os.getpid() + 1)  # an earlier one
    assert not was_stopped(tmp_path, trainer)
    announce_stop(tmp_path, os.getpid())
    assert was_stopped(tmp_path, trainer)
    write_trainer(tmp_path)  # goes on
    alive = read_trainer(tmp_path)
    assert alive is not None
    assert not was_stopped(tmp_path, alive)


def test_a_training_process_is_alive_until_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES_AND_WAITS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        trainer = read_trainer(tmp_path)
        assert trainer is not None
        assert (trainer.pid, trainer.is_alive) == (process.pid, True)
        assert str(trainer) == f"process {process.pid} on {os.uname().nodename}"
        process.kill()
        while read_trainer(tmp_path).is_alive:  # type: ignore[union-attr]
            time.sleep(0.01)


def test_a_process_that_only_has_the_same_number_is_not_the_trainer(tmp_path: Path) -> None:
    write_trainer(tmp_path)
    long_ago = time.time() - 10 * 365 * 86400  # before this process began
    os.utime(tmp_path / HOLDER_FILE, (long_ago, long_ago))
    assert read_trainer(tmp_path).is_alive is False  # type: ignore[union-attr]
    began = psutil.Process().create_time()
    for seconds, is_alive in ((-3.0, False), (-1.0, True), (9.0, True)):  # clocks are not exact
        os.utime(tmp_path / HOLDER_FILE, (began + seconds, began + seconds))
        machine = os.uname().nodename
        since: Any = pytest.approx(began + seconds)
        expected = TrainerProcess(os.getpid(), machine, is_alive, since)
        assert read_trainer(tmp_path) == expected


def test_of_two_trainings_in_a_folder_the_newest_is_the_first(tmp_path: Path) -> None:
    (tmp_path / "temper").write_text("input()")
    with ExitStack() as stack:
        pids: list[int] = []
        for command in ("train", "resume", "list"):
            words = [sys.executable, "temper", command]
            process = stack.enter_context(subprocess.Popen(words, cwd=tmp_path, stdin=-1))
            stack.callback(process.kill)
            pids.insert(0, process.pid)
            time.sleep(0.03)  # more than the resolution of their beginnings
        assert [process.pid for process in started_trainings(tmp_path)] == pids[1:]


def test_a_process_that_lives_on_after_its_training_is_no_trainer(tmp_path: Path) -> None:
    """A notebook's kernel does."""
    write_trainer(tmp_path)
    assert read_trainer(tmp_path).is_alive is True  # type: ignore[union-attr]
    leave_trainer(tmp_path)
    trainer = read_trainer(tmp_path)
    assert trainer is not None
    assert (trainer.pid, trainer.is_alive) == (os.getpid(), False)


def test_a_run_that_is_gone_is_not_made_anew_by_who_leaves_it(tmp_path: Path) -> None:
    leave_trainer(tmp_path / "gone")
    leave_trainer(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_another_machine_nothing_is_claimed(tmp_path: Path) -> None:
    (tmp_path / HOLDER_FILE).write_text("process 1 on another-machine\n")
    assert read_trainer(tmp_path).is_alive is None  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [None, "", "somebody", "process x on y", "process 1 at y"])
def test_a_record_without_content_is_nobody(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / HOLDER_FILE).write_text(text)
    assert read_trainer(tmp_path) is None


def test_a_stop_that_was_announced_is_of_one_process_and_of_one_signal(tmp_path: Path) -> None:
    assert not take_announced_stop(tmp_path)
    announce_stop(tmp_path, os.getpid() + 1)
    assert not take_announced_stop(tmp_path)
    announce_stop(tmp_path, os.getpid())
    assert take_announced_stop(tmp_path)
    assert not take_announced_stop(tmp_path), "the next signal is another's"
    announce_stop(tmp_path / "gone", os.getpid())  # a disk that refuses
    assert not take_announced_stop(tmp_path / "gone")


@pytest.mark.parametrize(
    ("words", "trains"),
    [
        ("python -m temper train rows.jsonl", True),
        ("python -m infrastructure train-resume", True),
        ("/usr/bin/python /home/me/bin/temper train", True),
        ("python -m temper watch train", False),
        ("python -m other train", False),
        ("vim a b temper train", False),
        ("", False),
    ],
)
def test_a_training_is_known_by_its_command(words: str, trains: bool) -> None:
    assert run_owner._trains(words.split()) is trains
