"""Classification of device errors, and release of the memory that an error keeps in use."""

import gc
import traceback
from collections.abc import Iterator

import torch

from infrastructure.core.process_memory import allowed_bytes

_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",  # from cuBLAS
    "Cannot allocate memory",  # from the C library
)
_NO_THREAD = "can't start new thread"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the GPU or on the CPU.

    "can't start new thread" counts only if the kernel limits this process's memory: then there was
    no memory for the thread's stack. Without such a limit, the error means that there are too many
    threads, and smaller batches do not help.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if _NO_THREAD in str(error):
        return allowed_bytes() is not None
    return any(text in str(error) for text in _OUT_OF_MEMORY)


def is_device_fault(error: BaseException) -> bool:
    """Return whether the GPU itself failed, so that all later calls fail and its memory is lost."""
    if is_out_of_memory(error):
        return False
    is_cuda_error = isinstance(error, RuntimeError) and "CUDA error:" in str(error)
    return is_cuda_error or isinstance(error, torch.AcceleratorError)


def can_be_halved(error: BaseException, micro_batch_size: int, batch_size: int) -> bool:
    """Return whether `error` is a lack of memory that smaller micro-batches may avoid."""
    return is_out_of_memory(error) and min(micro_batch_size, batch_size) > 1


def release_traceback(error: BaseException) -> None:
    """Clear local variables in the traceback of `error`, which keep the autograd graph alive."""
    for one in _with_causes(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None


def free_memory(device: torch.device) -> None:
    """Release unused memory. Call it outside of the `except` block that caught the error."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            waiting += [one.__cause__, one.__context__]
            yield one
