"""The peak memory of this process, in CPU memory or on a GPU, between two moments.

In system memory, this is the peak of the resident set (RSS): the kernel's high-water mark if it can
be reset (Linux), or else the largest sample of a thread. On a GPU, it is the memory that torch's
allocator has reserved, because all of that must fit.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from infrastructure.core.process_memory import (
    high_water_mark_bytes,
    reset_high_water_mark,
    resident_bytes,
)

SAMPLE_SECONDS = 0.005


class PeakMemory:
    """A meter of the peak memory in bytes since `start`.

    Args:
        device: the device of the training; "cpu" means the system memory of this process.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sampler: _Sampler | None = None

    def start(self) -> None:
        """Begin a new measurement of the peak; earlier values are discarded."""
        self.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        elif not reset_high_water_mark():
            self._sampler = _Sampler()

    def read(self) -> int:
        """Return the peak since `start`. This can be called repeatedly."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self.device))
        if self._sampler is not None:
            return self._sampler.highest()
        return high_water_mark_bytes() or resident_bytes()

    def now(self) -> int:
        """Return the memory in use at this moment."""
        if self.device.type == "cuda":
            return int(torch.cuda.memory_reserved(self.device))
        return resident_bytes()

    def close(self) -> None:
        """End the sampling thread, if there is one."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Yield a `PeakMemory` that has been started, and close it at the end of the block."""
    peak = PeakMemory(device)
    peak.start()
    try:
        yield peak
    finally:
        peak.close()


class _Sampler:
    """A thread that samples the resident memory. A peak between two samples is missed."""

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
