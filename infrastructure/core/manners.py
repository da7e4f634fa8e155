"""How a process of ours behaves: said once at its start, before torch is imported."""

import logging
import os

# Libraries that warn, on import, of parts of themselves that nobody here asks for.
CHATTY_LOGGERS = ("torchao", "torch.utils._pytree", "httpx")


def quiet_libraries() -> None:
    """Let libraries tell errors only."""
    for chatty in CHATTY_LOGGERS:
        logging.getLogger(chatty).setLevel(logging.ERROR)


def share_the_cores() -> None:
    """Let threads that wait for each other sleep, unless the environment says otherwise.

    Those that spin make a training 10 to 15 times slower where something else needs the same cores,
    as on every shared machine.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
