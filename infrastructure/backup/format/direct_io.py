"""File access that bypasses the page cache, if the system supports direct I/O (Linux's O_DIRECT).

A checkpoint is read back from the disk once after it is written, and seldom again. Managing its
pages in the cache would take about half of the CPU time that a checkpoint needs
(`benchmarks/direct_writes.py`). A direct transfer requires memory addresses, file offsets and
lengths that are whole pages. The end of a file is written through the cache, and so is the whole
file if the file system does not support direct I/O.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

BLOCK_BYTES = 4 * 1024**2  # the system splits it into several parallel transfers
DIRECT = getattr(os, "O_DIRECT", 0)


def write_directly(file: FileIO, chunks: Iterable[memoryview]) -> None:
    """Write bytes to the beginning of a new file.

    Raises:
        OSError: on any error of the system.
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
    """Yield the bytes of a file in pieces. Each piece becomes invalid when the next is yielded.

    Raises:
        OSError: on any error of the system.
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
    """Write all of `data`, even if the system accepts only a part of it per call."""
    while data:
        try:
            data = data[file.write(data) :]
        except OSError as error:
            _fall_back_to_the_cache(file, error)


def set_direct(file: FileIO, wanted: bool) -> bool:
    """Turn direct I/O for an open file on or off. Return whether the setting was changed."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    changed = flags | DIRECT if wanted else flags & ~DIRECT
    if changed == flags:
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, changed)
    except OSError:  # this file system does not support direct I/O
        return False
    return True


def _fall_back_to_the_cache(file: FileIO, error: OSError) -> None:
    """Turn off direct I/O for a file if the error is EINVAL. Raise any other error.

    EINVAL means that direct I/O cannot continue, either because the previous transfer was not a
    whole number of pages, as at the end of a file, or because the file system requires larger
    blocks.
    """
    if error.errno != errno.EINVAL or not set_direct(file, False):
        raise error
