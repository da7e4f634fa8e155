"""The error for a full disk. Its text names the disk and the step, and how to resume."""

import errno
from pathlib import Path

from infrastructure.core.messages import phrase

FULL = (errno.ENOSPC, errno.EDQUOT)


def full_disk(error: BaseException, folder: Path, step: int) -> OSError | None:
    """Return an error for the user if `error` was caused by a full disk; otherwise None.

    Args:
        folder: the run's folder, on the disk that is full.
        step: the step that the run had reached.
    """
    seen: BaseException | None = error
    while seen is not None and not (isinstance(seen, OSError) and seen.errno in FULL):
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return None
    return OSError(phrase("core.disk_full", step=step, folder=folder))
