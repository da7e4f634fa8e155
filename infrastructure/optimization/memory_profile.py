"""Memory profiling of a block of code: its peak memory, and memory not freed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from infrastructure.core.hardware import MIB
from infrastructure.core.messages import phrase
from infrastructure.optimization.peak_memory import peak_memory


@dataclass
class MemoryProfile:
    """The memory use of one block of code in bytes, filled in when the block ends.

    Attributes:
        before_bytes, after_bytes: the resident memory of this process before and after the block.
        peak_bytes: the highest resident memory in between.
        gpu_peak_bytes, gpu_delta_bytes: the peak and the change for this process's tensors on the
            current GPU; 0 without a GPU.
    """

    name: str
    before_bytes: int = 0
    after_bytes: int = 0
    peak_bytes: int = 0
    gpu_peak_bytes: int = 0
    gpu_delta_bytes: int = 0

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
        peak, rise = _mib(self.peak_bytes), _mib(self.rise_bytes)
        left, left_on_gpu = self.delta_bytes / MIB, self.gpu_delta_bytes / MIB
        whole = phrase(
            "optimization.memory_profile_line", name=self.name, peak=peak, rise=rise, left_mib=left
        )
        on_gpu = phrase(
            "optimization.gpu_memory_profile_line",
            peak=_mib(self.gpu_peak_bytes),
            left_mib=left_on_gpu,
        )
        return [whole, *([on_gpu] if self.gpu_peak_bytes else [])]


@contextmanager
def profile_memory(name: str) -> Iterator[MemoryProfile]:
    """Measure the memory use of a block. The yielded profile is filled in when the block ends."""
    profile = MemoryProfile(name)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        profile.gpu_delta_bytes = -torch.cuda.memory_allocated()
    with peak_memory(torch.device("cpu")) as peak:
        profile.before_bytes = peak.now()
        try:
            yield profile
        finally:
            profile.after_bytes = peak.now()
            profile.peak_bytes = max(peak.read(), profile.after_bytes)
            if on_gpu:
                profile.gpu_peak_bytes = torch.cuda.max_memory_allocated()
                profile.gpu_delta_bytes += torch.cuda.memory_allocated()


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.1f} MiB"
