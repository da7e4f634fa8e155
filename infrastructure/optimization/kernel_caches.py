"""Limits on how many half-precision kernels the CPU libraries cache.

oneDNN compiles a kernel for each matrix product and shape. PyTorch has a cache of its own in
addition to that of oneDNN, and both keep 1,024 entries of half a megabyte each, or more on a CPU
with AMX. So a run whose rows have many lengths grows by almost a gigabyte. The cache of oneDNN
saves time, because compiling a kernel again takes 0.5 to 1.6 ms. PyTorch's own cache saves
no further time. If lengths are rounded up (`size_grid.py`), a ninth of oneDNN's entries is enough
for all shapes of a run.
"""

import os
from collections.abc import MutableMapping

KEPT_KERNELS = 112
BYTES_OF_A_KERNEL = 3 << 18  # half a megabyte, and half as much again for heap fragmentation
# Each cache by the variables that its library reads, of which Temper sets the first; its capacity.
CAPACITIES = {
    ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"): KEPT_KERNELS,
    ("LRU_CACHE_CAPACITY",): 1,
}


def bound_kernel_caches(environment: MutableMapping[str, str] = os.environ) -> None:
    """Limit the kernel caches of this process and its children, by environment variables.

    Variables that are already set keep their values. The libraries read the variables once, at the
    first matrix product in half precision. The limits do not change any result.
    """
    for names, capacity in CAPACITIES.items():
        if not any(name in environment for name in names):
            environment[names[0]] = str(capacity)
