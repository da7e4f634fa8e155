"""Ranks whose partner never comes: they answer signals and the limit of time."""

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from infrastructure.core.errors import ProcessLostError
from infrastructure.core.launcher import LaunchedProcess
from infrastructure.training.distributed import group, members
from infrastructure.training.distributed.group import JoinedGroup
from infrastructure.training.distributed.members import LOOPBACK, by_launcher

SOON_SECONDS = 60.0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> tuple[LaunchedProcess, LaunchedProcess]:
    """Two ranks that a script started by their variables, as nothing but `WORLD_SIZE=2` does."""
    with socket.create_server((LOOPBACK, 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return LaunchedProcess(0, 2, 0, LOOPBACK), LaunchedProcess(1, 2, 1, LOOPBACK)


def wait_interrupted(timer: threading.Timer, launched: LaunchedProcess) -> None:
    """The timer may be over before anything is waited for."""
    timer.start()
    JoinedGroup(by_launcher(launched).store, launched.rank, 2, torch.device("cpu"))


def test_w3_rank_0_gives_up_a_partner_that_never_comes(
    launched: tuple[LaunchedProcess, LaunchedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "LEAST_JOINING_SECONDS", 0.3)
    began = time.monotonic()
    store = by_launcher(launched[0]).store
    with pytest.raises(ProcessLostError, match=r"training\.rank_never_joined\(.*rank=1, size=2"):
        JoinedGroup(store, 0, 2, torch.device("cpu"), limit_seconds=0.6)
    assert 0.6 < time.monotonic() - began < SOON_SECONDS


def test_w3_a_rank_gives_up_a_rank_0_that_never_comes(
    launched: tuple[LaunchedProcess, LaunchedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "RANK_0_WITHIN", timedelta(seconds=0.3))
    began = time.monotonic()
    with pytest.raises(ProcessLostError, match=r"training\.rank_0_unreachable"):
        by_launcher(launched[1])
    assert 0.3 < time.monotonic() - began < SOON_SECONDS


@pytest.mark.parametrize("rank", [0, 1])
def test_w3_a_signal_ends_the_wait_for_a_partner(
    launched: tuple[LaunchedProcess, LaunchedProcess], rank: int
) -> None:
    began = time.monotonic()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        wait_interrupted(timer, launched[rank])
    timer.join()
    assert time.monotonic() - began < SOON_SECONDS


def test_w3_ranks_that_come_one_after_the_other_meet(
    launched: tuple[LaunchedProcess, LaunchedProcess],
) -> None:
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(by_launcher, launched[1])
        time.sleep(0.3)
        assert not later.done()
        first = by_launcher(launched[0])
        first.store.set("word", "from 0")
        assert by_launcher(launched[0]).store.get("word") == b"from 0"  # it is asked for twice
        second = later.result(SOON_SECONDS)
        assert second.store.get("word") == b"from 0"
        assert [(m.rank, m.size, m.local_rank) for m in (first, second)] == [(0, 2, 0), (1, 2, 1)]
