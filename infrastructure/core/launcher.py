"""The environment that a launcher (torchrun, accelerate launch) gives to each process it starts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class LaunchedProcess:
    """This process as one of several training processes that a launcher started together.

    Attributes:
        rank: the number of this process among all of them, from 0.
        size: the number of processes on all machines.
        local_rank: the number of this process on its machine.
        address: the address of the machine of rank 0, as the other machines reach it.
    """

    rank: int
    size: int
    local_rank: int
    address: str


def launched_process(environment: Mapping[str, str] = os.environ) -> LaunchedProcess | None:
    """Return the rank and the other values that a launcher has given to this process.

    Return None if there was no launcher, or if it started only one process.
    """
    if any(not environment.get(name) for name in NEEDED):
        return None
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    local_rank = int(environment.get("LOCAL_RANK") or rank)
    return LaunchedProcess(rank, size, local_rank, environment["MASTER_ADDR"]) if size > 1 else None


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher started this process, alone or as one of several."""
    return bool(environment.get("RANK"))
