"""How many kernels the libraries of a CPU keep in half precision.

oneDNN compiles a kernel for each product and shape. PyTorch keeps what it was made from in a cache
of its own beside oneDNN's, and both keep 1,024: half a megabyte each, and more on a CPU with AMX.
A training whose rows have many lengths grows by almost a gigabyte. oneDNN's own cache is what saves
time: what is dropped there is made again in 0.5 to 1.6 ms, and PyTorch's beside it saves nothing
that can be measured. A ninth of oneDNN's holds the shapes that a training comes back to, where
its lengths are rounded up (`size_grid.py`).
"""

import os
from collections.abc import MutableMapping

KEPT_KERNELS = 112
BYTES_OF_A_KERNEL = 3 << 18  # half a megabyte, and half as much again for what it tears the heap
# Each cache, by the names that its library reads, of which the first one is ours to set; how many.
CAPACITIES = {
    ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"): KEPT_KERNELS,
    ("LRU_CACHE_CAPACITY",): 1,
}


def bound_kernel_caches(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and those that it starts keep few kernels; what was set before stays.

    The libraries read it once, at the first product in half precision. Kept kernels change no
    number.
    """
    for names, capacity in CAPACITIES.items():
        if not any(name in environment for name in names):
            environment[names[0]] = str(capacity)
