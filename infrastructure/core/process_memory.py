"""The system memory of this process: functions that measure it, release it, and limit it.

Sizes are in bytes. "Resident" memory is the part that is in CPU memory now.
"""

import ctypes
import functools
import os
import resource
import sys
from pathlib import Path

import psutil

from infrastructure.core.hardware import MIB

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_HIGH_WATER_MARK = "5"
PEAK_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss
LEAST_FREE_BYTES = 16 * MIB
FILE_PAGES_BYTES = 32 * MIB
M_MMAP_THRESHOLD = -3  # number of the option in glibc's malloc.h
LARGE_BLOCK_BYTES = MIB
UNLIMITED_STACK_BYTES = 2 * MIB  # of a thread, if `ulimit -s` sets no limit


def resident_bytes() -> int:
    """Return the resident memory of this process. This takes about ten microseconds."""
    return int(_process(os.getpid()).memory_info().rss)


@functools.lru_cache(maxsize=1)  # reading its start time takes ten times as long as its memory
def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)


def children_bytes() -> int:
    """Return the resident memory of all descendants of this process."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.Error:
            continue
    return total


def peak_resident_bytes() -> int:
    """Return the peak resident memory of this process.

    On Linux it is read from /proc, because the value of `getrusage` is never below that of the
    parent process.
    """
    peak = high_water_mark_bytes()
    if peak is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT_BYTES
    return peak


def high_water_mark_bytes() -> int | None:
    """Return the peak resident memory that the kernel recorded; None if this system has no such
    record.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    peak_kib = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak_kib[0]) * 1024 if peak_kib else None


def reset_high_water_mark() -> bool:
    """Reset the kernel's record of the peak memory. Return False if this is not supported."""
    try:
        CLEAR_REFS.write_text(RESET_HIGH_WATER_MARK)
    except OSError:  # not Linux, or a container that forbids it
        return False
    return high_water_mark_bytes() is not None


def trim_heap() -> None:
    """Return the free memory of the C library glibc to the system. Other C libraries keep
    little.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def give_back_large_blocks() -> None:
    """From now on, return large blocks of memory to the system as soon as they are freed.

    By default, the C library glibc keeps freed blocks for the next block of that size. Small,
    long-lived objects are then allocated inside them, so the next large block does not fit, and the
    memory of the process grows with each one.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def allowed_bytes(threads_to_come: int = 0) -> int | None:
    """Return the maximum memory that this process may use, or None if the kernel sets no limit.

    The limit is RLIMIT_DATA, for example from `ulimit -d`, on private memory.

    Args:
        threads_to_come: the number of threads that the process will start. Their stacks count in
            full toward the limit, although little of them is used.
    """
    if not can_limit_hard():
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY:
        return None
    now = psutil.Process().memory_info()
    stacks_bytes = threads_to_come * _stack_bytes()
    return int(now.rss + max(0, soft - now.data - stacks_bytes))


def _stack_bytes() -> int:
    """Return the size of the stack that glibc reserves for a new thread."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return UNLIMITED_STACK_BYTES if soft == resource.RLIM_INFINITY else soft


def can_limit_hard() -> bool:
    """Return whether the system can limit the memory of a single process; Linux can."""
    return sys.platform == "linux"


class HardLimit:
    """A limit of `limit_bytes` on this process's private memory, which the kernel enforces.

    The kernel's limit, RLIMIT_DATA, counts address space, including reserved space that is not used
    yet. So each call of `tighten` adapts it to the current memory use. An allocation beyond the
    limit fails with a MemoryError, or with torch's RuntimeError, to which training responds with
    smaller micro-batches.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._before: tuple[int, int] | None = None

    def tighten(self, used_bytes: int) -> None:
        """Set RLIMIT_DATA so that the total memory of the process stays below `limit_bytes`.

        `used_bytes` is the current use. Some memory is reserved for file-backed pages, which
        that limit does not count. A minimum is always allowed, because reporting an error also
        needs memory.
        """
        if self._before is None:
            self._before = resource.getrlimit(resource.RLIMIT_DATA)
        now = _process(os.getpid()).memory_info()
        unused = max(0, now.data - (now.rss - now.shared))
        free_bytes = self.limit_bytes - used_bytes - unused - FILE_PAGES_BYTES
        allowed = now.data + max(LEAST_FREE_BYTES, free_bytes)
        hard = self._before[1]
        if hard != resource.RLIM_INFINITY:
            allowed = min(allowed, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))

    def lift(self) -> None:
        """Restore the kernel's limit that applied before the first `tighten`."""
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
            self._before = None
