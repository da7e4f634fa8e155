"""The error for a full disk, which names the disk and the step, and says how to resume."""

import errno
from pathlib import Path

from infrastructure.core.messages import phrase

FULL = (errno.ENOSPC, errno.EDQUOT)


def full_disk(error: BaseException, folder: Path, step: int) -> OSError | None:
    """Return the error to show if `error` or one of its causes is a full disk, or None.

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
