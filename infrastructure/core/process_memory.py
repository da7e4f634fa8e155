"""Main memory of this process: how much it has, how it gives some back, and a limit to it.

Sizes are bytes. "Resident" is what lies in main memory now.
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
PEAK_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
LEAST_FREE_BYTES = 16 * MIB
FILE_PAGES_BYTES = 32 * MIB
M_MMAP_THRESHOLD = -3  # the number of this option in glibc's malloc.h
LARGE_BLOCK_BYTES = MIB
UNLIMITED_STACK_BYTES = 2 * MIB  # of a thread where `ulimit -s` sets no limit


def resident_bytes() -> int:
    """Resident memory of this process; some ten microseconds."""
    return int(_process(os.getpid()).memory_info().rss)


@functools.lru_cache(maxsize=1)  # to find out when it began takes ten times as long as its memory
def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)


def children_bytes() -> int:
    """Resident memory of all processes below this one; one that ends meanwhile counts nothing."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.Error:
            continue
    return total


def peak_resident_bytes() -> int:
    """The most resident memory that this process ever had.

    Linux tells it in /proc; what `getrusage` tells there is never below the starting process's.
    """
    peak = high_water_mark_bytes()
    if peak is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT_BYTES
    return peak


def high_water_mark_bytes() -> int | None:
    """The kernel's mark of the most resident memory; None where it keeps none (not Linux)."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    peak_kib = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak_kib[0]) * 1024 if peak_kib else None


def reset_high_water_mark() -> bool:
    """Let the kernel's mark begin anew from what is resident now; whether it did (`proc(5)`)."""
    try:
        CLEAR_REFS.write_text(RESET_HIGH_WATER_MARK)
    except OSError:  # not Linux, or a container that forbids it
        return False
    return high_water_mark_bytes() is not None


def trim_heap() -> None:
    """Let glibc return the free pages that it keeps; other C libraries keep none worth asking."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def give_back_large_blocks() -> None:
    """From now on large blocks go back to the system as soon as they are freed.

    glibc would keep them for the next block of that size. But what is small and stays is cut out
    of them meanwhile, so the next one does not fit in, and the process grows with each. Other C
    libraries keep none worth asking.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def allowed_bytes(threads_to_come: int = 0) -> int | None:
    """What this process may have at most where the kernel limits its private memory (RLIMIT_DATA,
    such as `ulimit -d` sets); None: it does not.

    Args:
        threads_to_come: that it will start; their stacks count there in full, and are hardly used.
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
    """Of a new thread, as glibc makes it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return UNLIMITED_STACK_BYTES if soft == resource.RLIM_INFINITY else soft


def can_limit_hard() -> bool:
    """Whether the system refuses memory beyond a limit to one process (Linux does)."""
    return sys.platform == "linux"


class HardLimit:
    """The kernel refuses this process more private memory than leads to `limit_bytes`.

    RLIMIT_DATA counts address space. What of it is there and not used yet may be used any time, so
    each `tighten` allows as much new address space as the limit leaves above what is resident and
    what may become so. A failed allocation is an ordinary MemoryError, or torch's RuntimeError,
    which the training answers with smaller pieces.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._before: tuple[int, int] | None = None

    def tighten(self, used_bytes: int) -> None:
        """Allow no more than what `limit_bytes` leaves above `used_bytes`, in use now.

        Some room is kept free for pages of files, which the kernel does not count; and some is left
        even beyond the limit: not even an error can be told without memory.
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
        """Back to what it was."""
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
            self._before = None
