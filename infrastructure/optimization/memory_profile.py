"""Memory profiling of a block of code: peak memory, memory not freed, and allocations by line."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from infrastructure.core.hardware import MIB
from infrastructure.core.messages import phrase
from infrastructure.core.process_memory import peak_resident_bytes, resident_bytes
from infrastructure.optimization.allocations import AllocationCounter

SAMPLE_SECONDS = 0.002
NUM_SHOWN = 5


@dataclass
class MemoryProfile:
    """The memory use of one block of code in bytes, filled in when the block ends.

    Attributes:
        before_bytes, after_bytes: the resident memory of this process before and after the block.
        peak_bytes: the highest resident memory in between.
        gpu_peak_bytes, gpu_delta_bytes: the peak and the change for this process's tensors on the
            current GPU; 0 without a GPU.
        top_allocations: pairs of `file:line` and the bytes of tensors created there, including
            freed ones; the largest first.
    """

    name: str
    before_bytes: int = 0
    after_bytes: int = 0
    peak_bytes: int = 0
    gpu_peak_bytes: int = 0
    gpu_delta_bytes: int = 0
    top_allocations: list[tuple[str, int]] = field(default_factory=list)

    @property
    def delta_bytes(self) -> int:
        """The growth of memory from the start to the end of the block; negative if it shrank."""
        return self.after_bytes - self.before_bytes

    @property
    def rise_bytes(self) -> int:
        """The growth of memory from the start of the block to its peak."""
        return max(0, self.peak_bytes - self.before_bytes)

    def lines(self) -> list[str]:
        """Return the profile as lines for the user."""
        lines = [
            phrase(
                "optimization.memory_profile_line",
                name=self.name,
                peak=_mib(self.peak_bytes),
                rise=_mib(self.rise_bytes),
                left_mib=self.delta_bytes / MIB,
            )
        ]
        if self.gpu_peak_bytes:
            lines.append(
                phrase(
                    "optimization.gpu_memory_profile_line",
                    peak=_mib(self.gpu_peak_bytes),
                    left_mib=self.gpu_delta_bytes / MIB,
                )
            )
        return lines + [f"  {_mib(size)} by {line}" for line, size in self.top_allocations]


@contextmanager
def profile_memory(name: str) -> Iterator[MemoryProfile]:
    """Measure the memory use of a block. The yielded profile is filled in when the block ends.

    Finding the lines that allocate makes each operation some ten microseconds slower.
    """
    profile = MemoryProfile(name)
    on_gpu = torch.cuda.is_available()
    gpu_before = _start_gpu() if on_gpu else 0
    with _peak_of_resident_memory() as peak, AllocationCounter() as counter:
        profile.before_bytes = peak[0]
        try:
            yield profile
        finally:
            profile.after_bytes = resident_bytes()
            profile.peak_bytes = max(peak[0], profile.after_bytes)
            profile.top_allocations = counter.top(NUM_SHOWN)
            if on_gpu:
                profile.gpu_peak_bytes = torch.cuda.max_memory_allocated()
                profile.gpu_delta_bytes = torch.cuda.memory_allocated() - gpu_before
    profile.peak_bytes = max(profile.peak_bytes, peak[0])


def _start_gpu() -> int:
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


@contextmanager
def _peak_of_resident_memory() -> Iterator[list[int]]:
    """Measure the peak of resident memory in a block. Yield a list whose only item is the peak so
    far.

    A thread samples memory every two milliseconds. If the block has the highest peak of the process
    so far, the system's high-water mark is used instead, which is exact.
    """
    peak = [resident_bytes()]
    highest_before = peak_resident_bytes()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(SAMPLE_SECONDS):
            peak[0] = max(peak[0], resident_bytes())

    thread = threading.Thread(target=watch, name="temper-memory-profile", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()
        highest = peak_resident_bytes()
        if highest > highest_before:
            peak[0] = max(peak[0], highest)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.1f} MiB"
