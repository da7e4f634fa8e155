"""Several real ranks for a test: each is a fork, and prints one JSON value."""

import functools
import json
import socket
import subprocess
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from infrastructure.training.distributed.group import JoinedGroup
from tests.forks import Forked

Work = Callable[[JoinedGroup], Any]
# An answer to a kill is seen by nobody who waits for longer than a test.
TEST_SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def store_at(port: int, *, is_host: bool = False) -> dist.TCPStore:
    limit = timedelta(seconds=TEST_SECONDS)
    return dist.TCPStore("127.0.0.1", port, None, is_host, limit, wait_for_workers=False)


def _work_as(
    rank: int, size: int, port: int, is_host: bool, prefix: str, work: Work, options: dict[str, Any]
) -> None:
    torch.set_num_threads(1)
    store = dist.PrefixStore(prefix, store_at(port, is_host=is_host))
    group = JoinedGroup(store, rank, size, torch.device("cpu"), **options)
    try:
        print(json.dumps(work(group)), flush=True)
    except BaseException as error:
        group.close(str(error))
        raise
    group.close()


def start_ranks(
    size: int, work: Work, port: int | None = None, prefix: str = "ranks", **options: Any
) -> list[Forked]:
    """Each rank does `work`, which can be pickled.

    Args:
        port: of a store that somebody else holds; None: rank 0 holds it.
        prefix: of the keys of these ranks.
        options: of `JoinedGroup`.
    """
    is_held, port = port is not None, port or free_port()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    works = [
        functools.partial(
            _work_as, rank, size, port, not is_held and rank == 0, prefix, work, options
        )
        for rank in range(size)
    ]
    return [Forked(each, **pipes) for each in works]


def results_of(processes: Sequence[Forked]) -> list[Any]:
    """What each rank printed.

    Raises:
        AssertionError: one failed.
    """
    found = [process.communicate(timeout=TEST_SECONDS) for process in processes]
    for process, (_, errors) in zip(processes, found, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in found]
