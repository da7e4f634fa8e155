"""Which errors can be recovered from, and how."""

import weakref

import pytest
import torch

from infrastructure.optimization import device_errors
from infrastructure.optimization.device_errors import (
    can_be_halved,
    is_device_fault,
    is_out_of_memory,
    release_traceback,
)
from tests.optimization.conftest import FakeGpu


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (ValueError("can't start new thread"), False),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 8 bytes"), True),
        (RuntimeError("unable to mmap 8 bytes from file <a>: Cannot allocate memory (12)"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("DefaultCPUAllocator: can't allocate memory"), False),
    ],
)
def test_out_of_memory_is_distinguished_from_other_errors(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(("allowed", "expected"), [(1 << 30, True), (None, False)])
def test_a_thread_that_is_refused_lacks_memory_where_the_kernel_limits_it(
    monkeypatch: pytest.MonkeyPatch, allowed: int | None, expected: bool
) -> None:
    monkeypatch.setattr(device_errors, "allowed_bytes", lambda: allowed)
    assert is_out_of_memory(RuntimeError("can't start new thread")) is expected


def test_the_allocator_of_this_torch_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_a_single_example_cannot_be_split() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    assert can_be_halved(error, 8, 32)
    assert not can_be_halved(error, 8, 1)
    assert not can_be_halved(error, 1, 32)
    assert can_be_halved(error, 2, 2)
    assert not can_be_halved(ValueError("wrong"), 8, 32)
    assert not can_be_halved(ValueError(), 8, 32)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), False),
        (ValueError("CUDA error: in a row of the data"), False),
    ],
)
def test_a_failed_device_is_distinguished_from_other_errors(
    error: Exception, expected: bool
) -> None:
    assert is_device_fault(error) is expected


def test_letting_go_of_an_error_frees_what_its_calls_held() -> None:
    class Graph:
        pass

    def fail() -> None:
        graph = Graph()
        held.append(weakref.ref(graph))
        raise RuntimeError("planted")

    def fail_again(step: int) -> None:
        try:
            fail() if step == 3 else fail_again(step + 1)
        except RuntimeError as error:
            graph = Graph()
            held.append(weakref.ref(graph))
            if step == 1:
                raise RuntimeError("in between")  # noqa: B904 - with a context alone
            raise RuntimeError("last") from error

    held: list[weakref.ref[Graph]] = []
    kept: list[Exception] = []
    try:
        fail_again(1)
    except RuntimeError as error:
        kept.append(error)
    assert [one() is not None for one in held] == [True] * 4
    release_traceback(kept[0])
    assert [one() for one in held] == [None] * 4


@pytest.mark.parametrize(("device", "num_emptied"), [("cpu", 0), ("cuda", 1)])
def test_memory_that_is_free_goes_to_the_others_on_the_device(
    device: str, num_emptied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, collected = FakeGpu(monkeypatch, (7, 5)), list[int]()
    monkeypatch.setattr(device_errors.gc, "collect", lambda: collected.append(1))
    device_errors.free_memory(torch.device(device))
    assert (gpu.num_emptied, collected) == (num_emptied, [1])


@pytest.mark.timeout(20)  # otherwise they are followed forever
def test_errors_that_lead_to_each_other_are_released_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    release_traceback(first)
