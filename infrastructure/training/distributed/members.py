"""The ways in which the ranks of one training find each other: by a launcher, or by rank 0 itself.

A rank that was started by another process waits until rank 0 needs it. The ranks meet in a store of
`torch.distributed`: the launcher's, or one that rank 0 holds for this machine only.
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
    """This process as a member of one training.

    Attributes:
        local_rank: its number on this machine: its GPU.
        store: read and written by all members.
    """

    rank: int
    size: int
    local_rank: int
    store: dist.Store

    def call_others(self, device_type: str, limit_seconds: float) -> None:
        """Call the other ranks, with the type of their devices and the limit of the group."""
        self.store.set(CALL, f"{device_type} {limit_seconds}")

    def called(self) -> tuple[str, float] | None:
        """Wait until rank 0 needs this process, and return the device type and the limit in
        seconds.

        None if rank 0 will never need it, or is gone.
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
    """Return the member for a process that a launcher started.

    Raises:
        ProcessLostError: the launcher is gone, or rank 0 has not come.
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
    """Return the store that rank 0 opens when it needs the others.

    The store is awaited in short rounds: torch's own wait would handle no signal, and in it rank 0
    would also wait for the others.
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
    """The processes of the ranks from 1 on, which this process starts on its machine.

    Args:
        size: number of ranks, this process included.
        num_threads: threads of each process. None: its own default.

    Attributes:
        member: rank 0.
        processes: by rank.
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
        """Wait for the processes to end, since they have done their part; kill those that do
        not."""
        end_all([*self.processes.values()], patience_seconds)


def started_by_rank_0(port: int, rank: int, size: int) -> Member:
    """Return the member for a process that rank 0 started."""
    host = dist.TCPStore(LOOPBACK, port, None, False, STORE_TIMEOUT)
    return Member(rank, size, rank, dist.PrefixStore(os.environ.pop(SECRET_VARIABLE), host))


@contextmanager
def others_dismissed() -> Iterator[None]:
    """Dismiss on exit the ranks that still wait for rank 0, if it has trained nothing.

    It has trained nothing if, for example, its run was already finished. Without a launcher, do
    nothing.
    """
    yield
    launch = launched_process()
    if launch is not None and launch.rank == 0:
        by_launcher(launch).store.compare_set(CALL, "", NOT_NEEDED)


def end_all(processes: Sequence[HelperProcess], patience_seconds: float) -> None:
    """Wait for processes that were asked to end; kill those that do not."""
    deadline = time.monotonic() + patience_seconds
    for process in processes:
        if not process.ends_within(max(0.0, deadline - time.monotonic())):
            process.kill()
            process.wait()
