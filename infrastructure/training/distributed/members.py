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
from functools import cache

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from infrastructure.core.errors import ProcessLostError
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.launcher import LaunchedProcess, launched_process
from infrastructure.core.shared_cores import THREADS_VARIABLE

RANK_MODULE = "infrastructure.training.rank_process"
SECRET_VARIABLE = "TEMPER_GROUP_SECRET"
CALL, NOT_NEEDED, DISMISSED = "rank 0", "not needed", "dismissed"
LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.05
STORE_TIMEOUT = timedelta(minutes=5)
AGENT_TIMEOUT = timedelta(seconds=30)  # no signal is handled in the meantime
RANK_0_WITHIN = timedelta(minutes=30)
DISMISSED_WITHIN = timedelta(minutes=1)  # ranks start together, and import the same packages


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

    def dismiss_others(self) -> None:
        """End the ranks that wait for rank 0, unless they were called."""
        self.store.compare_set(CALL, "", NOT_NEEDED)

    def stay_for_dismissed(self) -> None:
        """Wait until all ranks that were dismissed know it.

        A store that rank 0 has opened ends with it. Ranks that start later would look for rank 0
        for half an hour.
        """
        if not self.store.check([CALL]) or self.store.get(CALL).decode() != NOT_NEEDED:
            return
        deadline = time.monotonic() + DISMISSED_WITHIN.total_seconds()
        while self.store.add(DISMISSED, 0) < self.size - 1 and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

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
            self.store.add(DISMISSED, 1)
            return None
        device_type, limit_seconds = call.split()
        return device_type, float(limit_seconds)


def by_launcher(launch: LaunchedProcess) -> Member:
    """Return this process's `Member` if a launcher such as torchrun started it.

    The store is kept until this process ends, so that it still has what rank 0 told the others.

    Raises:
        ProcessLostError: the launcher is gone, or rank 0 did not appear.
    """
    return _launched_member(launch, int(os.environ["MASTER_PORT"]))


@cache
def _launched_member(launch: LaunchedProcess, port: int) -> Member:
    try:
        store = next(rendezvous("env://", timeout=AGENT_TIMEOUT))[0] if _has_agent() else None
        store = store or _store_of_rank_0(launch, port)
    except RuntimeError as error:
        raise ProcessLostError("training.parent_process_gone") from error
    return Member(launch.rank, launch.size, launch.local_rank, dist.PrefixStore("temper", store))


def _has_agent() -> bool:
    """Return whether the launcher has a store, which exists before its ranks and outlives them."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _store_of_rank_0(launch: LaunchedProcess, port: int) -> dist.Store:
    """Return the key-value store, which rank 0 opens when it needs the other ranks.

    This polls for the store, because torch's own wait would not handle signals and would make rank
    0 wait for the others.
    """
    address = launch.address
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

    Rank 0 does not need other ranks if, for example, the run was already finished, or its input is
    wrong. After an interruption, they are not dismissed: they get the signal as well. Without a
    launcher, the context does nothing.
    """
    try:
        yield
    except Exception:
        _dismiss_others()
        raise
    _dismiss_others()


def _dismiss_others() -> None:
    launch = launched_process()
    if launch is not None and launch.rank == 0:
        with suppress(ProcessLostError):  # says no more than what ended rank 0
            by_launcher(launch).dismiss_others()


def stay_for_dismissed() -> None:
    """At the end of rank 0's process, wait a short time for ranks that it has dismissed.

    This is not needed if the launcher has a store, because that store outlives rank 0.
    """
    launch = launched_process()
    if launch is not None and launch.rank == 0 and not _has_agent():
        with suppress(ProcessLostError):
            by_launcher(launch).stay_for_dismissed()


def end_all(processes: Sequence[HelperProcess], patience_seconds: float) -> None:
    """Wait for processes that were asked to end; kill those that do not end in time."""
    deadline = time.monotonic() + patience_seconds
    for process in processes:
        if not process.ends_within(max(0.0, deadline - time.monotonic())):
            process.kill()
            process.wait()
