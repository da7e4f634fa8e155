"""A disk that is full, told in one sentence: where, how far the work is, and how it goes on."""

import errno
from pathlib import Path

from infrastructure.core.messages import phrase

FULL = (errno.ENOSPC, errno.EDQUOT)


def full_disk(error: BaseException, folder: Path, step: int) -> OSError | None:
    """The error for people, where `error`, or what it came from, is a full disk; else None.

    Args:
        folder: of the run, on the disk that is full.
        step: that the training had reached.
    """
    seen: BaseException | None = error
    while seen is not None and not (isinstance(seen, OSError) and seen.errno in FULL):
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return None
    return OSError(phrase("core.disk_full", step=step, folder=folder))
