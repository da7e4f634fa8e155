"""Kernels of half precision: how many stay, and that memory grows with no further shape."""

import os
import sys

import pytest

from infrastructure.optimization.gpu_capability import cpu_has_bf16
from infrastructure.optimization.kernel_caches import CAPACITIES, KEPT_KERNELS, bound_kernel_caches
from tests.forks import outcome_of_forked

ONEDNN, OLD_ONEDNN, PYTORCH = (name for names in CAPACITIES for name in names)
NUM_FURTHER = 200
GROWTH_OF_KEPT_KERNELS = NUM_FURTHER << 18  # half of what as many take that stay
# Products of many shapes, and by how much the heap grows after the first ones.
PRODUCTS = f"""
import ctypes, torch
from infrastructure.training.core.precision import choose_precision

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

read = ctypes.CDLL(None).mallinfo2
read.restype = Heap
choose_precision("bf16", torch.device("cpu"))
weight = torch.ones(128, 256, dtype=torch.bfloat16)
for rows in range(1, {KEPT_KERNELS + NUM_FURTHER} + 1):
    torch.ones(rows, 128, dtype=torch.bfloat16) @ weight
    if rows == {KEPT_KERNELS}:
        before = read().h
print(read().h - before)
"""


def test_what_somebody_has_set_stays() -> None:
    environment: dict[str, str] = {}
    bound_kernel_caches(environment)
    assert environment == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "112", "LRU_CACHE_CAPACITY": "1"}
    environment = {ONEDNN: "7"}
    bound_kernel_caches(environment)
    assert environment == {ONEDNN: "7", PYTORCH: "1"}
    environment = {OLD_ONEDNN: "9", PYTORCH: "8"}
    bound_kernel_caches(environment)
    assert environment == {OLD_ONEDNN: "9", PYTORCH: "8"}


@pytest.mark.skipif(not cpu_has_bf16(), reason="without bf16 instructions no kernel is kept")
@pytest.mark.parametrize(("capacity", "grows"), [(None, False), ("2048", True)])
def test_the_heap_grows_with_no_further_shape(capacity: str | None, grows: bool) -> None:
    names = (ONEDNN, OLD_ONEDNN, PYTORCH)
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if capacity is not None:  # which shows that there is something to bound
        environment |= dict.fromkeys((ONEDNN, PYTORCH), capacity)
    done = outcome_of_forked([sys.executable, "-c", PRODUCTS], text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) > GROWTH_OF_KEPT_KERNELS) is grows
