"""How the processes of one training find each other: started by a launcher, or by the leader.

A store (a file in a private folder, or the launcher's own) holds where the leader listens, and a
word that only members know.
"""

import hmac
import json
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.launcher import LaunchedProcess, launched_process
from infrastructure.core.stop_signals import ignore_stop_signals
from infrastructure.training.parallel.messages import Channel, Message

FOLLOWER_MODULE = "infrastructure.training.follower_process"
KEY = "leader"
NOT_NEEDED = "not needed"
LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.05
HELLO_SECONDS, HELLO_BYTES = 10.0, 4096


@dataclass(frozen=True)
class Member:
    """This process among those of one training.

    Attributes:
        local_rank: its number on this machine: its GPU.
        address: where the leader's machine is reached.
        store: what all of them read and write.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    store: dist.Store


def by_launcher(launch: LaunchedProcess) -> Member:
    """The member that a launcher started."""
    store, rank, size = next(rendezvous("env://"))
    return Member(
        rank, size, launch.local_rank, launch.address, dist.PrefixStore("temper-members", store)
    )


def on_this_machine(folder: Path, rank: int, size: int) -> Member:
    """A member that the leader itself started; `folder` is private to them."""
    return Member(rank, size, rank, LOOPBACK, dist.FileStore(str(folder / "store"), size))


def start_followers(folder: Path, size: int, num_threads: int | None) -> list[HelperProcess]:
    """Start the processes of the ranks from 1 on.

    Args:
        num_threads: for each; None: as many as it likes.
    """
    environment = {} if num_threads is None else {"OMP_NUM_THREADS": str(num_threads)}
    return [
        HelperProcess(
            FOLLOWER_MODULE,
            *(str(folder), str(rank), str(size)),
            environment=environment,
            shows_words=True,
        )
        for rank in range(1, size)
    ]


class Reception:
    """Where the leader waits for its followers."""

    def __init__(self, member: Member) -> None:
        self._secret = secrets.token_hex(16)
        self._size = member.size
        is_local = member.address in (LOOPBACK, "localhost", "::1")
        self._server = socket.create_server((LOOPBACK if is_local else "", 0))
        self._server.settimeout(POLL_SECONDS)
        place = {"port": self._server.getsockname()[1], "secret": self._secret}
        member.store.set(KEY, json.dumps(place))

    def arrivals(self) -> Iterator[tuple[int, Channel] | None]:
        """Rank and channel of each follower as it comes; None again and again meanwhile."""
        missing = set(range(1, self._size))
        while missing:
            try:
                arrived = self._rank_of(self._server.accept()[0])
            except TimeoutError:
                arrived = None
            if arrived is not None and arrived[0] not in missing:
                arrived[1].close()
                arrived = None
            if arrived is not None:
                missing.remove(arrived[0])
            yield arrived

    def close(self) -> None:
        self._server.close()

    def _rank_of(self, connected: socket.socket) -> tuple[int, Channel] | None:
        """Who it is; None where it is somebody who does not know the word."""
        connected.setblocking(True)
        channel = Channel(connected)
        with suppress(EOFError, OSError, ValueError, KeyError, TypeError):
            if channel.connection.poll(HELLO_SECONDS):
                answer = channel.receive(HELLO_BYTES).values
                if hmac.compare_digest(str(answer["secret"]), self._secret):
                    return int(answer["rank"]), channel
        channel.close()
        return None


def join(member: Member) -> Channel | None:
    """Wait until the leader needs this process; None where it never will.

    From then on signals are the leader's business: its end is the end of this process too.
    """
    place = _wait_for_leader(member.store)
    if place is None:
        return None
    try:
        channel = Channel(socket.create_connection((member.address, place["port"])))
        ignore_stop_signals()
        channel.send(Message("join", {"rank": member.rank, "secret": place["secret"]}))
    except OSError:
        return None
    return channel


def _wait_for_leader(store: dist.Store) -> dict[str, Any] | None:
    try:
        while not store.check([KEY]):
            time.sleep(POLL_SECONDS)
        answer = store.get(KEY).decode()
    except RuntimeError:  # the store went away with the leader
        return None
    return None if answer == NOT_NEEDED else dict(json.loads(answer))


@contextmanager
def followers_dismissed() -> Iterator[None]:
    """Afterwards nobody waits for a leader any more that has trained nothing, such as one whose run
    was finished before. Does nothing without a launcher."""
    yield
    launch = launched_process()
    if launch is not None and launch.rank == 0:
        by_launcher(launch).store.compare_set(KEY, "", NOT_NEEDED)


def end_all(processes: Sequence[HelperProcess], patience_seconds: float) -> None:
    """Wait for processes that have been told to end; kill those that do not."""
    deadline = time.monotonic() + patience_seconds
    for process in processes:
        if not process.ends_within(max(0.0, deadline - time.monotonic())):
            process.kill()
            process.wait()
