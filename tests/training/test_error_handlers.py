"""Which errors can be recovered from, and how."""

import pytest
import torch

from infrastructure.training.error_handlers import Recovery, choose_recovery, is_out_of_memory


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 8 bytes"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("DefaultCPUAllocator: can't allocate memory"), False),
    ],
)
def test_out_of_memory_is_told_from_other_errors(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_the_allocator_of_this_torch_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_a_single_example_cannot_be_split() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    assert choose_recovery(error, 8, 32) is Recovery.SMALLER_MICRO_BATCH
    assert choose_recovery(error, 8, 1) is Recovery.RAISE
    assert choose_recovery(error, 1, 32) is Recovery.RAISE
    assert choose_recovery(ValueError(), 8, 32) is Recovery.RAISE
