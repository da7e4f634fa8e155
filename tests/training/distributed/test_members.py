"""Rank 0 calls the others when it needs them, or lets them go."""

import os
import signal
import threading
from datetime import timedelta
from typing import ClassVar

import pytest
import torch.distributed as dist

from infrastructure.core.errors import ProcessLostError
from infrastructure.core.launcher import LaunchedProcess
from infrastructure.core.shared_cores import THREADS_VARIABLE
from infrastructure.core.stop_signals import StopSignal
from infrastructure.training.distributed import members
from infrastructure.training.distributed.members import (
    SECRET_VARIABLE,
    Member,
    StartedRanks,
    by_launcher,
    end_all,
    others_dismissed,
    started_by_rank_0,
)
from tests.training.distributed.ranks import free_port


def test_a_rank_waits_until_it_is_called_and_is_given_device_and_limit() -> None:
    store = dist.HashStore()
    first, second = Member(0, 2, 0, store), Member(1, 2, 1, store)
    calls: list[tuple[str, float] | None] = []
    waiting = threading.Thread(target=lambda: calls.append(second.called()))
    waiting.start()
    assert not calls
    first.call_others("cuda", 12.5)
    waiting.join(60)
    assert calls == [("cuda", 12.5)]


class Gone:
    """The store of a process that is gone."""

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("Connection reset by peer")


def test_where_rank_0_is_gone_nobody_is_called() -> None:
    assert Member(1, 2, 1, Gone()).called() is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rank", "has_called", "expected"),
    [(0, False, None), (0, True, ("cpu", 3.0)), (1, True, ("cpu", 3.0))],
)
def test_a_rank_0_that_trains_nothing_lets_the_others_go(
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    has_called: bool,
    expected: tuple[str, float] | None,
) -> None:
    """A call that was made counts, whatever comes after it."""
    store = dist.HashStore()
    launched = LaunchedProcess(rank, 2, rank, "127.0.0.1")
    monkeypatch.setattr(members, "launched_process", lambda: launched)
    monkeypatch.setattr(members, "by_launcher", lambda _: Member(rank, 2, rank, store))
    late = Member(1, 2, 1, store)
    given: list[tuple[str, float] | None] = []
    looking = threading.Timer(0.3, lambda: given.append(late.called()))
    looking.start()
    if has_called:
        Member(0, 2, 0, store).call_others("cpu", 3.0)
    with pytest.raises(KeyError), others_dismissed():
        raise KeyError  # what ends rank 0 is no reason to leave them waiting
    members.stay_for_dismissed()
    if not has_called:
        assert given == [expected]  # rank 0 was there until rank 1 had looked
    looking.join(60)
    assert given == [expected]


def test_without_a_launcher_nothing_is_dismissed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "launched_process", lambda: None)
    monkeypatch.setattr(members, "by_launcher", lambda _: pytest.fail("there is no launcher"))
    with others_dismissed():
        pass


class Helper:
    """A process that ends by itself after some seconds of a clock."""

    clock = 0.0
    made: ClassVar["list[Helper]"] = []

    def __init__(self, *arguments: str, seconds: float = 0.0, **options: object) -> None:
        self.arguments, self.options, self.seconds = arguments, options, seconds
        self.waits: list[float] = []
        self.is_killed = False
        Helper.made.append(self)

    def ends_within(self, seconds: float) -> bool:
        self.waits.append(seconds)
        Helper.clock += min(seconds, max(0.0, self.seconds - Helper.clock))
        return self.seconds <= Helper.clock

    def kill(self) -> None:
        self.is_killed = True

    def wait(self) -> None:
        assert self.is_killed


def test_all_share_one_patience_and_who_stays_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Helper, "clock", 0.0)
    monkeypatch.setattr(members.time, "monotonic", lambda: Helper.clock)
    helpers = [Helper(seconds=seconds) for seconds in (1.0, 99.0, 2.0, 99.0)]
    end_all(helpers, 5.0)  # type: ignore[arg-type]
    assert [one.waits for one in helpers] == [[5.0], [4.0], [0.0], [0.0]]
    assert [one.is_killed for one in helpers] == [False, True, False, True]


@pytest.mark.parametrize("num_threads", [3, None])
def test_started_ranks_meet_in_a_store_that_only_they_know(
    monkeypatch: pytest.MonkeyPatch, num_threads: int | None
) -> None:
    monkeypatch.setattr(Helper, "made", [])
    monkeypatch.setattr(members, "HelperProcess", Helper)
    ranks = StartedRanks(3, num_threads)
    assert [one.arguments[2:] for one in Helper.made] == [("1", "3"), ("2", "3")]
    assert {one.arguments[0] for one in Helper.made} == {members.RANK_MODULE}
    assert list(ranks.processes) == [1, 2]
    environment = Helper.made[0].options["environment"]
    assert isinstance(environment, dict)
    assert environment.get(THREADS_VARIABLE) == (None if num_threads is None else "3")
    monkeypatch.setenv(SECRET_VARIABLE, environment[SECRET_VARIABLE])
    port = int(Helper.made[0].arguments[1])
    second = started_by_rank_0(port, 2, 3)
    assert SECRET_VARIABLE not in os.environ
    assert (second.rank, second.size, second.local_rank) == (2, 3, 2)
    assert (ranks.member.rank, ranks.member.size, ranks.member.local_rank) == (0, 3, 0)
    ranks.member.call_others("cpu", 7.0)
    assert second.called() == ("cpu", 7.0)
    monkeypatch.setenv(SECRET_VARIABLE, "guessed")
    assert not started_by_rank_0(port, 1, 3).store.check([members.CALL])


def test_only_rank_0_lets_the_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    launched = LaunchedProcess(1, 2, 1, "127.0.0.1")
    monkeypatch.setattr(members, "launched_process", lambda: launched)
    monkeypatch.setattr(members, "by_launcher", lambda _: Member(1, 2, 1, store))
    with others_dismissed():
        pass
    assert not store.check([members.CALL])


def test_an_interruption_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = LaunchedProcess(0, 2, 0, "127.0.0.1")
    monkeypatch.setattr(members, "launched_process", lambda: launched)
    monkeypatch.setattr(members, "by_launcher", lambda _: pytest.fail("it would be waited for"))
    with pytest.raises(StopSignal), others_dismissed():
        raise StopSignal(signal.SIGTERM)


def test_rank_0_waits_for_nobody_who_need_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's store outlives rank 0, and ranks that never start are given up."""
    launched, store = LaunchedProcess(0, 3, 0, "127.0.0.1"), dist.HashStore()
    monkeypatch.setattr(members, "launched_process", lambda: launched)
    monkeypatch.setattr(members, "by_launcher", lambda _: Member(0, 3, 0, store))
    members.stay_for_dismissed()  # who were called, or not dismissed
    Member(0, 3, 0, store).dismiss_others()
    monkeypatch.setattr(members, "DISMISSED_WITHIN", timedelta(seconds=0.05))
    members.stay_for_dismissed()
    monkeypatch.setattr(members, "DISMISSED_WITHIN", timedelta(hours=1))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    members.stay_for_dismissed()


def test_the_store_of_a_launch_has_a_call_as_long_as_rank_0_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a run that ends would wait for ranks that have ended."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    launched = LaunchedProcess(0, 2, 0, "127.0.0.1")
    by_launcher(launched).call_others("cpu", 3.0)
    monkeypatch.setattr(members, "launched_process", lambda: launched)
    monkeypatch.setattr(members, "DISMISSED_WITHIN", timedelta(hours=1))
    with others_dismissed():
        pass
    members.stay_for_dismissed()
    second = by_launcher(LaunchedProcess(1, 2, 1, "127.0.0.1"))
    assert second.called() == ("cpu", 3.0)


def test_ranks_of_a_launcher_without_a_store_meet_in_that_of_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 does not wait for the others; these wait for it, but not forever."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    first, second = (
        by_launcher(LaunchedProcess(rank, 2, rank + 4, "127.0.0.1")) for rank in range(2)
    )
    first.call_others("cpu", 3.0)
    assert second.called() == ("cpu", 3.0)
    assert (second.rank, second.size, second.local_rank) == (1, 2, 5)
    port = free_port()
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setattr(members, "RANK_0_WITHIN", timedelta(seconds=0.03))
    place = rf"minutes=0\.0005, address=127\.0\.0\.1, port={port}\)"
    with pytest.raises(ProcessLostError, match=rf"training\.rank_0_unreachable\({place}"):
        by_launcher(LaunchedProcess(1, 2, 1, "127.0.0.1"))
