"""One process trains a run at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infrastructure.core.lock import Lock
from infrastructure.monitoring.trainer_process import HOLDER_FILE, leave_trainer, write_trainer

LOCK_FILE = "lock"


@contextmanager
def only_trainer_of(run_path: Path) -> Iterator[None]:
    """Inside, this process is the only one that trains the run in `run_path`.

    Raises:
        ValueError: another living process does; says which.
    """
    lock, holder = Lock(run_path / LOCK_FILE), run_path / HOLDER_FILE
    try:
        if not lock.take(wait=False, where_there_are_none=True):
            name = holder.read_text().strip() if holder.exists() else "another process"
            raise ValueError(
                f"run {run_path.name} is being trained by {name}; wait for its end, stop it, or"
                " train another beside it with --new-run"
            )
        write_trainer(run_path)
        try:
            yield
        finally:
            leave_trainer(run_path)
    finally:
        lock.release()
