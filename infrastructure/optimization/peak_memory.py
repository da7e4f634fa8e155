"""The highest memory of this process, or on a GPU, between two moments.

Main memory is the resident set (RSS), read from the kernel's own high-water mark where that can be
set back (Linux, `proc(5)`: /proc/self/clear_refs), and else sampled by a thread. On a GPU it is
what torch's allocator has reserved, because that is what must fit.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
RESET_HIGH_WATER_MARK = "5"
SAMPLE_SECONDS = 0.005


class PeakMemory:
    """Highest memory since `start`, in bytes.

    Args:
        device: of the training; "cpu" means this process in main memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sampler: _Sampler | None = None

    def start(self) -> None:
        """Forget what was before."""
        self.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        elif not _reset_high_water_mark():
            self._sampler = _Sampler()

    def read(self) -> int:
        """The highest since `start`; may be asked again."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self.device))
        if self._sampler is not None:
            return self._sampler.highest()
        return _high_water_mark() or resident_bytes()

    def now(self) -> int:
        """What is taken at this moment."""
        if self.device.type == "cuda":
            return int(torch.cuda.memory_reserved(self.device))
        return resident_bytes()

    def close(self) -> None:
        """End the thread, where there is one."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """A `PeakMemory` that has started."""
    peak = PeakMemory(device)
    peak.start()
    try:
        yield peak
    finally:
        peak.close()


def resident_bytes() -> int:
    """What this process holds in main memory now."""
    return int(psutil.Process().memory_info().rss)


class _Sampler:
    """Looks at the resident set again and again; a peak between two looks is missed."""

    def __init__(self) -> None:
        self._highest = resident_bytes()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="temper-peak-memory", daemon=True)
        self._thread.start()

    def highest(self) -> int:
        self._highest = max(self._highest, resident_bytes())
        return self._highest

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_SECONDS):
            self.highest()


def _reset_high_water_mark() -> bool:
    """Whether the kernel counts from now on."""
    try:
        CLEAR_REFS.write_text(RESET_HIGH_WATER_MARK)
    except OSError:  # not Linux, or a container that forbids it
        return False
    return _high_water_mark() is not None


def _high_water_mark() -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None
