"""What a launcher (torchrun, accelerate launch) told this process about the others it started."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class LaunchedProcess:
    """One of several processes that were started with the same command line.

    Attributes:
        rank: its number; 0 leads.
        size: how many there are, on all machines.
        local_rank: its number on this machine.
        address: where the others reach the first machine.
    """

    rank: int
    size: int
    local_rank: int
    address: str


def launched_process(environment: Mapping[str, str] = os.environ) -> LaunchedProcess | None:
    """What the launcher said; None where there was none, or it started one process only."""
    if any(not environment.get(name) for name in NEEDED):
        return None
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    local_rank = int(environment.get("LOCAL_RANK") or rank)
    return LaunchedProcess(rank, size, local_rank, environment["MASTER_ADDR"]) if size > 1 else None


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher has started this process, alone or as one of several."""
    return bool(environment.get("RANK"))
