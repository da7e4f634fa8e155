"""A lock on a file between processes."""

import errno
import fcntl
import os
import weakref
from pathlib import Path

NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def is_held(path: Path) -> bool | None:
    """Return whether a running process holds the lock on `path`, or None if that is unknown.

    No file is created.
    """
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
    """Try to lock an open file. Return False if another process has locked it.

    Return None if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class Lock:
    """A lock on a file, held until `release` or the end of the process.

    The file is created if necessary. The kernel manages the lock (flock), so a killed process
    cannot leave a lock behind. A child process that inherits `descriptor` also holds the lock until
    it ends.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    def take(
        self, *, shared: bool = False, wait: bool = True, where_there_are_none: bool | None = None
    ) -> bool:
        """Take the lock, shared or exclusive. If another process holds it, wait, or return False if
        `wait` is False.

        Args:
            where_there_are_none: the value to return on a file system without locks, such as some
                network mounts; by default, the value of `wait`.
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
        """Release the lock."""
        self._close()
