"""How this process uses cores that others need too; said before torch is imported."""

import os

THREADS_VARIABLE = "OMP_NUM_THREADS"  # how many threads PyTorch computes with on a CPU
# How often a thread looks before it sleeps: about as long as the others of a small product take.
SPINS_BEFORE_SLEEP = 1000


def share_the_cores() -> None:
    """Let threads that wait for each other sleep soon, unless the environment says otherwise.

    Those that only spin make a training many times slower where something else needs the same
    cores, as on every shared machine. Those that sleep at once take 1.7 times as long as they need
    on a machine of their own; with a short spin before it they lose nothing there, and beside
    others a fifth (embedded model, two cores).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_BEFORE_SLEEP))
