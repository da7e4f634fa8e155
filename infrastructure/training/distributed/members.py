"""The ways in which the ranks of one run find each other: by a launcher, or started by rank 0.

A rank that another process started waits until rank 0 needs it. The ranks meet in a key-value store
of `torch.distributed`: the launcher's, or one that rank 0 opens for this machine only.
"""

import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from infrastructure.core.errors import ProcessLostError
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.launcher import LaunchedProcess, launched_process
from infrastructure.core.shared_cores import THREADS_VARIABLE

RANK_MODULE = "infrastructure.training.rank_process"
SECRET_VARIABLE = "TEMPER_GROUP_SECRET"
CALL, NOT_NEEDED = "rank 0", "not needed"
LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.05
STORE_TIMEOUT = timedelta(minutes=5)
AGENT_TIMEOUT = timedelta(seconds=30)  # no signal is handled in the meantime
RANK_0_WITHIN = timedelta(minutes=30)


@dataclass(frozen=True)
class Member:
    """This process, as one of the ranks of a run.

    Attributes:
        local_rank: number of this process on its machine, which selects its GPU.
        store: key-value store that all members use.
    """

    rank: int
    size: int
    local_rank: int
    store: dist.Store

    def call_others(self, device_type: str, limit_seconds: float) -> None:
        """Start the ranks that wait for rank 0, by sending them the device type and the
        time limit.
        """
        self.store.set(CALL, f"{device_type} {limit_seconds}")

    def called(self) -> tuple[str, float] | None:
        """Wait until rank 0 needs this process; return the device type and the time limit in
        seconds.

        Return None if rank 0 is gone or does not need this process.
        """
        try:
            while not self.store.check([CALL]):
                time.sleep(POLL_SECONDS)
            call = self.store.get(CALL).decode()
        except RuntimeError:  # the store is gone with its process
            return None
        if call == NOT_NEEDED:
            return None
        device_type, limit_seconds = call.split()
        return device_type, float(limit_seconds)


def by_launcher(launch: LaunchedProcess) -> Member:
    """Return this process's `Member` if a launcher such as torchrun started it.

    Raises:
        ProcessLostError: the launcher is gone, or rank 0 did not appear.
    """
    # An agent's store exists before its ranks.
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = next(rendezvous("env://", timeout=AGENT_TIMEOUT))[0] if has_agent else None
        store = store or _store_of_rank_0(launch)
    except RuntimeError as error:
        raise ProcessLostError("training.parent_process_gone") from error
    return Member(launch.rank, launch.size, launch.local_rank, dist.PrefixStore("temper", store))


def _store_of_rank_0(launch: LaunchedProcess) -> dist.Store:
    """Return the key-value store, which rank 0 opens when it needs the other ranks.

    This polls for the store, because torch's own wait would not handle signals and would make rank
    0 wait for the others.
    """
    address, port = launch.address, int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + RANK_0_WITHIN.total_seconds()
    while launch.rank != 0 and not _listens(address, port):
        if time.monotonic() > deadline:
            raise ProcessLostError(
                "training.rank_0_unreachable",
                minutes=RANK_0_WITHIN.total_seconds() / 60,
                address=address,
                port=port,
            )
        time.sleep(POLL_SECONDS)
    return dist.TCPStore(
        *(address, port, launch.size, launch.rank == 0, STORE_TIMEOUT),
        wait_for_workers=False,
        multi_tenant=True,
    )


def _listens(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), timeout=1.0):
        return True
    return False


class StartedRanks:
    """The processes of ranks 1 and up, which this process starts on its machine.

    Args:
        size: number of ranks, including this process.
        num_threads: threads of each process. None: its own default.

    Attributes:
        member: this process, as rank 0.
        processes: the started processes, by rank.
    """

    def __init__(self, size: int, num_threads: int | None) -> None:
        secret = secrets.token_hex(16)
        with socket.create_server((LOOPBACK, 0)) as server:
            port = server.getsockname()[1]
            host = dist.TCPStore(
                *(LOOPBACK, port, None, True, STORE_TIMEOUT),
                master_listen_fd=server.detach(),
            )
        self.member = Member(0, size, 0, dist.PrefixStore(secret, host))
        environment = {SECRET_VARIABLE: secret}
        if num_threads is not None:
            environment[THREADS_VARIABLE] = str(num_threads)
        self.processes = {
            rank: HelperProcess(
                RANK_MODULE,
                *(str(port), str(rank), str(size)),
                environment=environment,
                shows_words=True,
            )
            for rank in range(1, size)
        }

    def end(self, patience_seconds: float) -> None:
        """Wait for the started processes to end, and kill those that do not."""
        end_all([*self.processes.values()], patience_seconds)


def started_by_rank_0(port: int, rank: int, size: int) -> Member:
    """Return this process's `Member` if rank 0 started it."""
    host = dist.TCPStore(LOOPBACK, port, None, False, STORE_TIMEOUT)
    return Member(rank, size, rank, dist.PrefixStore(os.environ.pop(SECRET_VARIABLE), host))


@contextmanager
def others_dismissed() -> Iterator[None]:
    """Return a context that, on exit, dismisses the ranks that rank 0 has not needed.

    Rank 0 does not need other ranks if, for example, the run was already finished. Without a
    launcher, the context does nothing.
    """
    yield
    launch = launched_process()
    if launch is not None and launch.rank == 0:
        by_launcher(launch).store.compare_set(CALL, "", NOT_NEEDED)


def end_all(processes: Sequence[HelperProcess], patience_seconds: float) -> None:
    """Wait for processes that were asked to end; kill those that do not end in time."""
    deadline = time.monotonic() + patience_seconds
    for process in processes:
        if not process.ends_within(max(0.0, deadline - time.monotonic())):
            process.kill()
            process.wait()
