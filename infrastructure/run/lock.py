"""The lock of a run, so that only one process trains it at a time."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.files import paths_below, recover_directory, remove_parts
from infrastructure.core.lock import Lock
from infrastructure.monitoring.records.run_owner import (
    leave_trainer,
    read_trainer,
    write_trainer,
)

LOCK_FILE = "lock"
LOOK_SECONDS = 0.1
DIRECTORIES = ("final", "tokenizer", "resume")  # replaced atomically


@contextmanager
def waited_for(run_path: Path, seconds: float) -> Iterator[None]:
    """Wait for the lock of the run in `run_path`, and hold the lock inside the block.

    The process that holds the lock may be finished and only waiting for the backup.

    Raises:
        ValueError: if that process still runs after `seconds`. The message names the process.
    """
    deadline = time.monotonic() + seconds
    while _is_trained_elsewhere(run_path) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    with _locked(run_path):
        yield


def _remove_leftovers(run_path: Path) -> None:
    """Remove the partial files that killed processes left in the directory of this run."""
    for name in DIRECTORIES:
        recover_directory(run_path / name)
    for folder in (run_path, *(path for path in paths_below(run_path) if path.is_dir())):
        if "objects" not in folder.relative_to(run_path).parts:  # the store removes its own
            remove_parts(folder)


def _is_trained_elsewhere(run_path: Path) -> bool:
    trainer = read_trainer(run_path)
    return trainer is not None and trainer.is_alive is True and trainer.pid != os.getpid()


@contextmanager
def only_trainer_of(run_path: Path) -> Iterator[None]:
    """Hold the lock of the run in `run_path` inside the block, and record that this process trains
    it.

    Raises:
        ValueError: if another live process trains the run. The message names that process.
    """
    with _locked(run_path):
        write_trainer(run_path)
        try:
            yield
        finally:
            leave_trainer(run_path)


def refuse_trained_elsewhere(run_path: Path) -> None:
    """Raise an error if another process trains the run.

    Raises:
        ValueError: if another live process trains the run. The message names that process.

    Call this before printing anything about resuming the run.
    """
    with _locked(run_path):
        pass


@contextmanager
def _locked(run_path: Path) -> Iterator[None]:
    lock = Lock(run_path / LOCK_FILE)
    try:
        if not lock.take(wait=False, where_there_are_none=True):
            raise InputError(
                "run.run_is_being_trained", run=run_path.name, trainer=_holder(run_path)
            )
        _remove_leftovers(run_path)
        yield
    finally:
        lock.release()


def _holder(run_path: Path) -> str:
    trainer = read_trainer(run_path)
    return "another process" if trainer is None or trainer.is_alive is False else str(trainer)
