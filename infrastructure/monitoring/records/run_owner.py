"""Which process trains a run, and whether it still lives: written by it, asked by who looks on."""

import itertools
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

HOLDER_FILE = "trained_by"
STOP_FILE = "to_be_stopped"  # written just before the signal, so that it is known for what it is
LINE = re.compile(r"process (\d+) on (\S+)( ended)?\n?")
PROGRAMS, COMMANDS = ("temper", "infrastructure"), ("train", "resume", "train-resume")
CLOCK_SLACK_SECONDS = 2.0  # of file times against process start times


@dataclass(frozen=True)
class TrainerProcess:
    """Who trains a run, or did so last.

    Attributes:
        is_alive: whether it trains the run still; None where it cannot be said: another machine's.
        since: unix time of its beginning, or of its end where it has said so.
    """

    pid: int
    machine: str
    is_alive: bool | None
    since: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine}"


def write_trainer(run_path: Path, pid: int | None = None) -> None:
    """Write down that the process `pid` (None: this one) trains the run.

    Raises:
        OSError: the disk refuses.
    """
    (run_path / HOLDER_FILE).write_text(_line(pid or os.getpid()))


def announce_stop(run_path: Path, pid: int) -> None:
    """Write down that the signal which `pid` gets now is a person's `temper stop`; where the disk
    refuses, it is a signal like any other."""
    with suppress(OSError):
        (run_path / STOP_FILE).write_text(_line(pid))


def was_stopped(run_path: Path, trainer: TrainerProcess) -> bool:
    """Whether a person has stopped the process that trained a run last: its announcement lies there
    where the process ended before it could take it, or before there was a checkpoint."""
    try:
        text = (run_path / STOP_FILE).read_text()
    except (OSError, ValueError):
        return False
    return trainer.is_alive is False and text == f"{trainer}\n"


def take_announced_stop(run_path: Path) -> bool:
    """Whether `announce_stop` has announced a signal to this process; forgets it."""
    path = run_path / STOP_FILE
    try:
        is_of_this_process = path.read_text() == _line(os.getpid())
        path.unlink()
    except (OSError, ValueError):
        return False
    return is_of_this_process


def leave_trainer(run_path: Path) -> None:
    """Write down that this process trains the run no more, although it may live on: a notebook's
    kernel does. Where that cannot be written, it shows when the process is gone.
    """
    path = run_path / HOLDER_FILE
    with suppress(OSError), path.open("r+") as file:  # not made anew where the run is gone
        file.write(_line(os.getpid(), " ended"))
        file.truncate()


def this_process() -> str:
    """This process, as others are told of it."""
    return _line(os.getpid()).strip()


def _line(pid: int, more: str = "") -> str:
    return f"process {pid} on {os.uname().nodename}{more}\n"


def read_trainer(run_path: Path) -> TrainerProcess | None:
    """Who trains the run, or did so last; None where nobody has written it down.

    No lock is touched, so looking never stands in the way of a training that begins.
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
    """The processes that were started in `folder` by `temper train` or `resume`, the newest
    first; those of them that have a run already, too."""
    trainings: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if _trains(process.cmdline()) and Path(process.cwd()) == folder:
                trainings.append(process)
    return sorted(trainings, key=psutil.Process.create_time, reverse=True)


def computes(process: psutil.Process) -> bool:
    """Whether it has not ended, even where nobody has asked yet how."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _trains(words: list[str]) -> bool:
    """`python -m temper train …`, or by the script of that name."""
    return any(
        Path(program).name in PROGRAMS and command in COMMANDS
        for program, command in itertools.pairwise(words[:4])
    )


def _was_there(pid: int, written_at: float) -> bool:
    """Whether `pid` is a process that began before the file was written; ids are used again."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return computes(process) and process.create_time() <= written_at + CLOCK_SLACK_SECONDS
    return False
