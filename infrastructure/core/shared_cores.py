"""Settings that let several processes share CPU cores.

The settings must be made before torch is imported.
"""

import os

THREADS_VARIABLE = "OMP_NUM_THREADS"  # number of threads that PyTorch uses on a CPU
# How often a thread checks before it sleeps: about a quarter of a millisecond, which is longer than
# the time between two operations of a small model.
SPINS_BEFORE_SLEEP = 5000


def share_the_cores() -> None:
    """Make waiting threads sleep instead of spinning, unless the environment already sets this.

    Spinning threads make training many times slower if another process needs the same cores, as on
    any shared machine. If threads sleep too early, they must be woken up more often, which is slow
    on a virtual machine. `python -m benchmarks.waiting_threads` measures both.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_BEFORE_SLEEP))
