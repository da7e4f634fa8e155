"""What to do about an error inside a training step: the loop asks, and applies the answer."""

from enum import StrEnum

import torch


class Recovery(StrEnum):
    """How a training goes on after an error."""

    SMALLER_MICRO_BATCH = "smaller_micro_batch"
    """Do the same batch again in smaller pieces; batch, step and result stay what they were."""

    RAISE = "raise"
    """Nothing here can help."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: CUDA's own error, or the CPU allocator's RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "DefaultCPUAllocator: can't allocate memory" in text or "CUDA out of memory" in text
    )


def choose_recovery(error: BaseException, micro_batch_size: int, batch_size: int) -> Recovery:
    """The recovery for `error`, raised while `batch_size` examples were done in pieces."""
    if is_out_of_memory(error) and min(micro_batch_size, batch_size) > 1:
        return Recovery.SMALLER_MICRO_BATCH
    return Recovery.RAISE
