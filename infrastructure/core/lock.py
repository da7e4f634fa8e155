"""A lock between processes."""

import errno
import fcntl
import os
import weakref
from pathlib import Path

NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def is_held(path: Path) -> bool | None:
    """Whether a living process holds the lock on `path`; None: nobody can tell. Makes no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        is_free = try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)
    return None if is_free is None else not is_free


def try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Lock an open file, if nobody has; None: the file system has no locks, and nobody can tell."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class Lock:
    """A lock on a file, which is made; held until `release` or the end of the process.

    It is the kernel's (flock): nothing of a killed process stands in the way of the next one. A
    child that inherits `descriptor` holds it too, and until its own end.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    def take(
        self, *, shared: bool = False, wait: bool = True, where_there_are_none: bool | None = None
    ) -> bool:
        """Take the lock, or change its kind; False when it is not free and `wait` is not set.

        Args:
            where_there_are_none: what to answer on a file system without locks (some network
                mounts), where nobody can tell; None: as if it were free for who would wait.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.descriptor, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_LOCKS_HERE:
                raise
            return wait if where_there_are_none is None else where_there_are_none
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._close()
