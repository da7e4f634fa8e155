"""One process trains a run at a time. The lock is the kernel's: it ends with the process."""

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = "lock"
NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

log = logging.getLogger(__name__)


@contextmanager
def only_trainer_of(run_path: Path) -> Iterator[None]:
    """Inside, this process is the only one that trains the run in `run_path`.

    Raises:
        ValueError: another living process does; says which.
    """
    with (run_path / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ValueError(
                f"run {run_path.name} is being trained by {holder}; wait for its end, or stop it"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS_HERE:
                raise
            log.warning("%s: this file system has no locks; train it once at a time", run_path)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield
