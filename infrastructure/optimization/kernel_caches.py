"""Limits on how many kernels the CPU libraries keep in half precision.

oneDNN compiles a kernel for each product and shape. PyTorch keeps the inputs of this in a cache of
its own next to oneDNN's, and both keep 1,024 entries: half a megabyte each, and more on a CPU with
AMX. A run whose rows have many lengths grows by almost a gigabyte. oneDNN's own cache saves
time: an entry dropped there is made again in 0.5 to 1.6 ms, while PyTorch's saves nothing
measurable in addition. A ninth of oneDNN's holds the shapes that a run returns to if its
lengths are rounded up (`size_grid.py`).
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
    """Make this process and those that it starts keep few kernels; variables already set are kept.

    The libraries read them once, at the first product in half precision. Kept kernels change no
    number.
    """
    for names, capacity in CAPACITIES.items():
        if not any(name in environment for name in names):
            environment[names[0]] = str(capacity)
