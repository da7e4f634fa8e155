"""Files past the page cache, where the system has direct I/O (Linux's O_DIRECT).

What a checkpoint writes is read back from the disk once, and seldom again. The work for its pages
in the cache is about half of what a version costs the processor beside a training
(`benchmarks/direct_writes.py`). Addresses in memory, places in the file and lengths of a direct
transfer are whole pages. The end of a file is written through the cache, and so is all of it where
a file system has no direct I/O.
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
                _fall_back_to_the_cache(file, error)
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
            _fall_back_to_the_cache(file, error)


def set_direct(file: FileIO, wanted: bool) -> bool:
    """Whether that changed how a file is read and written."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    changed = flags | DIRECT if wanted else flags & ~DIRECT
    if changed == flags:
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, changed)
    except OSError:  # this file system has no direct I/O
        return False
    return True


def _fall_back_to_the_cache(file: FileIO, error: OSError) -> None:
    """EINVAL says that this cannot be done directly: less than a page was done before, as at the
    end of a file, or the file system takes larger ones."""
    if error.errno != errno.EINVAL or not set_direct(file, False):
        raise error
