"""A record of the process that trains a run, and checks whether that process is running."""

import itertools
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

HOLDER_FILE = "trained_by"
STOP_FILE = "to_be_stopped"  # written just before the signal, so that its cause is known
LINE = re.compile(r"process (\d+) on (\S+)( ended)?\n?")
PROGRAMS, COMMANDS = ("temper", "infrastructure"), ("train", "resume", "train-resume")
CLOCK_SLACK_SECONDS = 2.0  # of file times against process start times


@dataclass(frozen=True)
class TrainerProcess:
    """The process that trains a run, or if none does, the process that last trained it.

    Attributes:
        is_alive: whether the process still trains the run; None if unknown, because the process is
            on another machine.
        since: the Unix time at which the process recorded that it trains the run, or that it has
            ended.
    """

    pid: int
    machine: str
    is_alive: bool | None
    since: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine}"


def write_trainer(run_path: Path, pid: int | None = None) -> None:
    """Record that the process `pid`, by default this one, trains the run.

    Raises:
        OSError: if the disk fails.
    """
    (run_path / HOLDER_FILE).write_text(_line(pid or os.getpid()))


def announce_stop(run_path: Path, pid: int) -> None:
    """Record that the next signal to the process `pid` comes from the user's `temper stop`.

    If this cannot be written, the signal is treated like any other.
    """
    with suppress(OSError):
        (run_path / STOP_FILE).write_text(_line(pid))


def was_stopped(run_path: Path, trainer: TrainerProcess) -> bool:
    """Return whether the user stopped the process that last trained a run.

    If the process ended before it could remove it, the record of `announce_stop` shows this.
    """
    try:
        text = (run_path / STOP_FILE).read_text()
    except (OSError, ValueError):
        return False
    return trainer.is_alive is False and text == f"{trainer}\n"


def take_announced_stop(run_path: Path) -> bool:
    """Return whether `announce_stop` has recorded a stop for this process, and remove the
    record.
    """
    path = run_path / STOP_FILE
    try:
        is_of_this_process = path.read_text() == _line(os.getpid())
        path.unlink()
    except (OSError, ValueError):
        return False
    return is_of_this_process


def leave_trainer(run_path: Path) -> None:
    """Record that this process has stopped training the run, although the process may continue.

    If this cannot be written, the run counts as being trained until the process ends.
    """
    path = run_path / HOLDER_FILE
    with suppress(OSError), path.open("r+") as file:  # not created again if the run is gone
        file.write(_line(os.getpid(), " ended"))
        file.truncate()


def this_process() -> str:
    """Return a description of this process, such as `process 123 on host`, for other processes."""
    return _line(os.getpid()).strip()


def _line(pid: int, more: str = "") -> str:
    return f"process {pid} on {os.uname().nodename}{more}\n"


def read_trainer(run_path: Path) -> TrainerProcess | None:
    """Return the process that trains or last trained the run; None if none is recorded.

    No lock is taken, so this never blocks a run that is starting.
    """
    path = run_path / HOLDER_FILE
    try:
        match, written_at = LINE.fullmatch(path.read_text()), path.stat().st_mtime
    except (OSError, ValueError):
        return None
    if match is None:
        return None
    pid, machine, has_ended = int(match[1]), match[2], bool(match[3])
    is_alive = False if has_ended else None
    if not has_ended and machine == os.uname().nodename:
        is_alive = _was_there(pid, written_at)
    return TrainerProcess(pid, machine, is_alive, written_at)


def started_trainings(folder: Path) -> list[psutil.Process]:
    """Return the processes that `temper train` or `resume` started in `folder`, the newest first.

    This includes processes that have already created a run.
    """
    trainings: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if _trains(process.cmdline()) and Path(process.cwd()) == folder:
                trainings.append(process)
    return sorted(trainings, key=psutil.Process.create_time, reverse=True)


def computes(process: psutil.Process) -> bool:
    """Return whether a process is still running, and is not a zombie."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _trains(words: list[str]) -> bool:
    """Return whether a command line is `python -m temper train …`, or the script's equivalent."""
    return any(
        Path(program).name in PROGRAMS and command in COMMANDS
        for program, command in itertools.pairwise(words[:4])
    )


def _was_there(pid: int, written_at: float) -> bool:
    """Return whether the process `pid` is running and is the process that wrote the file.

    A later process with the same PID is recognized because it began after the file was written.
    """
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return computes(process) and process.create_time() <= written_at + CLOCK_SLACK_SECONDS
    return False
