"""Which process trains a run, and whether it still lives: written by it, asked by who looks on."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

HOLDER_FILE = "trained_by"
CLOCK_SLACK_SECONDS = 2.0  # of file times against process start times


@dataclass(frozen=True)
class TrainerProcess:
    """Who trains a run, or did so last.

    Attributes:
        is_alive: None where it cannot be said: another machine's.
    """

    pid: int
    machine: str
    is_alive: bool | None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine}"


def write_trainer(run_path: Path) -> None:
    """Write down that this process trains the run.

    Raises:
        OSError: the disk refuses.
    """
    (run_path / HOLDER_FILE).write_text(f"process {os.getpid()} on {os.uname().nodename}\n")


def read_trainer(run_path: Path) -> TrainerProcess | None:
    """Who trains the run, or did so last; None where nobody has written it down.

    No lock is touched, so looking never stands in the way of a training that begins.
    """
    path = run_path / HOLDER_FILE
    try:
        words, written_at = path.read_text().split(), path.stat().st_mtime
    except (OSError, ValueError):
        return None
    if len(words) != 4 or words[::2] != ["process", "on"] or not words[1].isdecimal():
        return None
    pid, machine = int(words[1]), words[3]
    is_here = machine == os.uname().nodename
    return TrainerProcess(pid, machine, _was_there(pid, written_at) if is_here else None)


def _was_there(pid: int, written_at: float) -> bool:
    """Whether `pid` is a process that began before the file was written; ids are used again."""
    try:
        process = psutil.Process(pid)
        has_ended = process.status() == psutil.STATUS_ZOMBIE
        return not has_ended and process.create_time() <= written_at + CLOCK_SLACK_SECONDS
    except psutil.Error:
        return False
