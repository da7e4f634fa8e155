"""The prediction of a run's memory from two small measured steps of the same run.

The peak memory of a step is a constant (the process, weights, gradients, optimizer) plus
activations, which grow in proportion to the tokens of a micro-batch. Attention is computed within
each example, so no term grows with the square of the batch. Two measured points define the line,
whatever the model, precision, LoRA or checkpointing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.types import amount_bytes
from infrastructure.core.hardware import memory
from infrastructure.core.messages import phrase
from infrastructure.core.process_memory import allowed_bytes, resident_bytes

MAX_MEMORY_PERCENT = 85.0
# The rest is for a GPU's context and other programs, beyond what is free now.
GPU_SHARE = 0.95
# Threads that each of several processes starts when it joins: gloo's, heartbeat, prefetching.
THREADS_OF_A_RANK = 10


@dataclass(frozen=True)
class MemoryPoint:
    """The measured peak memory of a micro-batch, and its size in tokens or equally long rows."""

    size: int
    peak_bytes: int


@dataclass(frozen=True)
class MemoryLine:
    """The peak memory of a step as a linear function of the size of its largest micro-batch."""

    fixed_bytes: float
    bytes_per_unit: float

    def peak_bytes(self, size: int) -> int:
        """Return the predicted peak in bytes for a micro-batch of `size`."""
        return round(self.fixed_bytes + self.bytes_per_unit * size)


def fit_line(points: Sequence[MemoryPoint], idle_bytes: int) -> MemoryLine:
    """Fit a line through measured points by least squares.

    Args:
        points: at least one point. With only one, the line goes through `idle_bytes` at size 0.
        idle_bytes: the memory in use between two steps, with weights and optimizer. No step takes
            less.
    """
    xs = torch.tensor([float(point.size) for point in points], dtype=torch.float64)
    ys = torch.tensor([float(point.peak_bytes) for point in points], dtype=torch.float64)
    if len(set(xs.tolist())) == 1:
        xs, ys = torch.cat([xs, xs.new_zeros(1)]), torch.cat([ys, ys.new_tensor([idle_bytes])])
    x_mean, y_mean = xs.mean(), ys.mean()
    slope = float(((xs - x_mean) * (ys - y_mean)).sum() / ((xs - x_mean) ** 2).sum())
    slope = max(0.0, slope)
    fixed = float(y_mean) - slope * float(x_mean)
    return MemoryLine(fixed, slope)


@dataclass(frozen=True)
class MemoryBudget:
    """The memory that a run may use.

    Attributes:
        max_percent: the percentage of system memory for all programs together.
        cpu_limit: the maximum system memory for the training, as a size or a share; None means no
            further limit.
        gpu_limit: the maximum memory of a GPU, as a size or a share; None means no further limit.
    """

    max_percent: float = MAX_MEMORY_PERCENT
    cpu_limit: str | None = None
    gpu_limit: str | None = None

    @classmethod
    def of(cls, config: DeploymentConfig) -> "MemoryBudget":
        """Return the budget that a configuration allows."""
        share = config.memory.gpu_memory_fraction
        by_share = None if share is None else f"{100 * share:g}%"
        return cls(
            config.max_memory_percent,
            config.memory.cpu_memory_limit,
            config.resources.gpu.memory_limit or by_share,
        )

    def limit_bytes(self, device: torch.device, num_processes: int = 1) -> int:
        """Return this process's limit in bytes: the memory that exists, or less if a setting limits
        it.
        """
        return replace(self, max_percent=100.0).size_bytes(device, num_processes)

    def way_out(self, device: torch.device) -> str:
        """Return advice on how to give a run more memory, by a setting or with another machine."""
        on_gpu = device.type == "cuda"
        limit = self.gpu_limit if on_gpu else self.cpu_limit
        unlimited = replace(self, cpu_limit=None, gpu_limit=None)
        if limit is None or self.limit_bytes(device) >= unlimited.limit_bytes(device):
            return phrase("optimization.use_larger_machine")
        code = "optimization.raise_gpu_limit" if on_gpu else "optimization.raise_cpu_limit"
        return phrase(code, limit=limit)

    def size_bytes(self, device: torch.device, num_processes: int = 1) -> int:
        """Return the memory in bytes that this process may use on `device`, given the free memory.

        Args:
            num_processes: the number of processes that train. On a CPU, they share system memory,
                and the kernel limits each of them (RLIMIT_DATA).
        """
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            there = int((free + torch.cuda.memory_reserved(device)) * GPU_SHARE)
            return _at_most(there, self.gpu_limit, total)
        machine = memory()
        kept_free = machine.total_bytes * (1 - self.max_percent / 100)
        there = int(resident_bytes() + machine.available_bytes - kept_free)
        share = _at_most(there, self.cpu_limit, machine.total_bytes) // num_processes
        allowed = allowed_bytes(THREADS_OF_A_RANK if num_processes > 1 else 0)
        return share if allowed is None else min(share, allowed)


def _at_most(size_bytes: int, limit: str | None, total_bytes: int) -> int:
    return size_bytes if limit is None else min(size_bytes, amount_bytes(limit, total_bytes))
