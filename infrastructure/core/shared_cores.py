"""How this process uses cores that others need too; said before torch is imported."""

import os


def share_the_cores() -> None:
    """Let threads that wait for each other sleep, unless the environment says otherwise.

    Those that spin make a training 10 to 15 times slower where something else needs the same cores,
    as on every shared machine.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
