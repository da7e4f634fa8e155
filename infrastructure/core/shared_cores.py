"""How this process uses cores that others need too; said before torch is imported."""

import os

THREADS_VARIABLE = "OMP_NUM_THREADS"  # how many threads PyTorch computes with on a CPU
# How often a thread looks before it sleeps: for about a quarter of a millisecond, which is longer
# than what comes between two operations of a small model.
SPINS_BEFORE_SLEEP = 5000


def share_the_cores() -> None:
    """Let threads that wait for each other sleep soon, unless the environment says otherwise.

    Those that only spin make a training many times slower where something else needs the same
    cores, as on every shared machine. Those that sleep sooner have to be woken more often, which
    takes long on a virtual machine: `python -m benchmarks.waiting_threads` measures both.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_BEFORE_SLEEP))
