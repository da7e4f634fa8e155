"""Files past the page cache, where the system has such a way (Linux's O_DIRECT).

What a checkpoint writes is read back from the disk once, and seldom again. In the cache it takes
memory from others, and the system's work for each of its pages takes time from a training: more
than all else that writing does. Addresses in memory, places in the file and lengths of a direct
transfer are whole pages. The end of a file goes the usual way, and so does all of it where a file
system knows no other.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

BLOCK_BYTES = 4 * 1024**2  # the system makes several transfers of it, which the disk does at once
DIRECT = getattr(os, "O_DIRECT", 0)


def write_directly(file: FileIO, chunks: Iterable[memoryview]) -> None:
    """Write bytes at the beginning of a new file.

    Raises:
        OSError: as the system does.
    """
    memory = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    end = 0
    set_direct(file, True)
    for chunk in chunks:
        while chunk:
            count = min(len(chunk), BLOCK_BYTES - end)
            memory[end : end + count] = chunk[:count]
            end, chunk = end + count, chunk[count:]
            if end == BLOCK_BYTES:
                write_all(file, memory)
                end = 0
    set_direct(file, False)
    write_all(file, memory[:end])


def read_directly(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, a piece at a time; each is gone when the next one comes.

    Raises:
        OSError: as the system does.
    """
    memory = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        set_direct(file, True)
        while True:
            try:
                count = file.readinto(memory)
            except OSError as error:
                _go_on_the_usual_way(file, error)
                continue
            if not count:
                return
            yield memory[:count]


def write_all(file: FileIO, data: memoryview) -> None:
    """Write all of `data`, however little of it the system takes at a time."""
    while data:
        try:
            data = data[file.write(data) :]
        except OSError as error:
            _go_on_the_usual_way(file, error)


def set_direct(file: FileIO, wanted: bool) -> bool:
    """Whether that changed how a file is read and written."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    changed = flags | DIRECT if wanted else flags & ~DIRECT
    if changed == flags:
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, changed)
    except OSError:  # this file system has one way only
        return False
    return True


def _go_on_the_usual_way(file: FileIO, error: OSError) -> None:
    """EINVAL says that this cannot be done directly: less than a page was done before, as at the
    end of a file, or the file system takes larger ones."""
    if error.errno != errno.EINVAL or not set_direct(file, False):
        raise error
