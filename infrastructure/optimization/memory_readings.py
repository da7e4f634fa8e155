"""Readings of memory in use, cheap enough for every step, and the release of unused memory.

Sizes are in bytes. "Resident" memory is the part of a process that is in CPU memory now. A sum
over child processes counts shared pages several times, so it is never too small.
"""

import gc
from dataclasses import dataclass

import torch

from infrastructure.core.hardware import memory
from infrastructure.core.process_memory import (
    children_bytes,
    peak_resident_bytes,
    resident_bytes,
    trim_heap,
)


@dataclass(frozen=True)
class DeviceMemory:
    """A GPU's memory: used by this process's tensors, reserved by its allocator, free, and in
    total.
    """

    index: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class MemoryInfo:
    """One reading of system memory and the GPUs.

    Attributes:
        total_bytes, available_bytes: the memory of the machine, or of the container if that is
            smaller.
        process_bytes: the resident memory of this process.
        children_bytes: the resident memory of the processes that this process started.
        peak_process_bytes: the highest resident memory of this process so far.
    """

    total_bytes: int
    available_bytes: int
    process_bytes: int
    children_bytes: int
    peak_process_bytes: int
    gpus: tuple[DeviceMemory, ...] = ()


def read_memory() -> MemoryInfo:
    """Read the current memory of the machine, this process and the GPUs, in about a millisecond."""
    machine = memory()
    return MemoryInfo(
        total_bytes=machine.total_bytes,
        available_bytes=machine.available_bytes,
        process_bytes=resident_bytes(),
        children_bytes=children_bytes(),
        peak_process_bytes=peak_resident_bytes(),
        gpus=tuple(map(read_gpu, range(torch.cuda.device_count()))),
    )


def read_gpu(index: int) -> DeviceMemory:
    """Return the memory of one GPU, after initializing the GPU if necessary."""
    free, total = torch.cuda.mem_get_info(index)
    return DeviceMemory(
        index=index,
        allocated_bytes=torch.cuda.memory_allocated(index),
        reserved_bytes=torch.cuda.memory_reserved(index),
        peak_allocated_bytes=torch.cuda.max_memory_allocated(index),
        free_bytes=free,
        total_bytes=total,
    )


def release_memory() -> int:
    """Collect garbage, and return unused memory to the system and to other users of the GPU.

    Returns:
        The number of bytes by which this process's resident memory fell; 0 if nothing could be
        freed.
    """
    before = resident_bytes()
    gc.collect()
    trim_heap()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return max(0, before - resident_bytes())
