"""How many kernels the libraries of a CPU keep in half precision.

oneDNN compiles a kernel for each product and shape. PyTorch keeps what it was made from in a cache
of its own beside oneDNN's, and both keep 1,024: half a megabyte each, so that a training whose rows
have many lengths grows by hundreds of megabytes. An eighth of that holds the shapes of some steps.
What is dropped is made again in about half a millisecond: on rows of GSM8K nine times in a step.
"""

import os
from collections.abc import MutableMapping

KEPT_KERNELS = 128
BYTES_OF_A_KERNEL = 3 << 18  # half a megabyte, and half as much again for what it tears the heap
# Each cache, by the names that its library reads; the first one is ours to set.
CAPACITIES = (
    ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"),
    ("LRU_CACHE_CAPACITY",),
)


def bound_kernel_caches(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and those that it starts keep `KEPT_KERNELS`; what was set before stays.

    The libraries read it once, at the first product in half precision. Kept kernels change no
    number.
    """
    for names in CAPACITIES:
        if not any(name in environment for name in names):
            environment[names[0]] = str(KEPT_KERNELS)
