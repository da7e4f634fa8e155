"""Ranks agree, decide, sum and broadcast; who is dead, stopped or stuck is named in time."""

import functools
import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import ProcessLostError
from infrastructure.training.distributed import group as module
from infrastructure.training.distributed.group import (
    ALONE,
    Group,
    JoinedGroup,
    Pulse,
    Status,
    _Watch,
    _who_left,
)
from tests.forks import Forked
from tests.training.distributed.ranks import (
    TEST_SECONDS,
    free_port,
    results_of,
    start_ranks,
    store_at,
)

LIMIT_SECONDS = 8.0  # longer than a busy machine keeps anybody from its work
TIMED_OUT = "[gloo] Timed out waiting 3000ms for recv operation to complete"


def weights(value: int) -> list[torch.Tensor]:
    """Of several types; one not contiguous, one without dimensions, one larger than a bucket."""
    return [
        torch.tensor([value > 0, False]),
        torch.tensor(value),
        torch.full((5,), value + 0.5, dtype=torch.bfloat16),
        torch.arange(6.0).view(2, 3).t() * value,
        torch.full((9,), float(value)),
        torch.empty(0),
    ]


def gradients(value: int) -> list[torch.Tensor]:
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    return [torch.full((3, 2), float(value), dtype=dtype) for dtype in types]


def do_everything(group: JoinedGroup) -> dict[str, Any]:
    """All verbs, one after another."""
    module.BUCKET_BYTES = 16
    found = weights(7 if group.is_first else 0)
    group.broadcast(found)
    sums = gradients(group.rank + 1)
    group.sum(sums)
    statuses = []
    for status, reason in [
        (Status.FINE, ""),
        (Status.OUT_OF_MEMORY if group.rank == 1 else Status.STOP, f"rank {group.rank}"),
        (Status.STOP if group.is_first else Status.FINE, "due"),
    ]:
        statuses.append([group.agree(status, reason).name, group.reason])
    decided = [group.decide(lambda: {"rank": group.rank}) for _ in range(3)]
    for _ in range(5):
        group.agree(Status.FINE)
    return {
        "weights": all(torch.equal(a, b) for a, b in zip(found, weights(7), strict=True)),
        "sums": [tensor.tolist()[0][0] for tensor in sums],
        "statuses": statuses,
        "decided": decided,
        "num_keys": group._store.num_keys() if group.is_first else None,
        "local_rank": group.local_rank == group.rank,
    }


def test_two_ranks_agree_decide_sum_and_broadcast() -> None:
    first, second = results_of(start_ranks(2, do_everything))
    num_keys = first.pop("num_keys")
    assert num_keys < 20  # what everybody has read is removed
    second.pop("num_keys")
    assert first == second
    assert first["weights"]
    assert first["local_rank"]
    assert first["sums"] == [3.0] * 4
    assert first["statuses"] == [["FINE", ""], ["OUT_OF_MEMORY", "rank 1"], ["STOP", "due"]]
    assert first["decided"] == [{"rank": 0}] * 3


def test_a_group_of_one_does_nothing() -> None:
    made: list[int] = []
    tensors = gradients(3)
    ALONE.sum(tensors)
    ALONE.broadcast(tensors)
    assert all(torch.equal(a, b) for a, b in zip(tensors, gradients(3), strict=True))
    assert ALONE.agree(Status.STOP, "asked") is Status.STOP
    value = object()  # not even through JSON
    assert ALONE.decide(lambda: (made.append(1), value)[1]) is value
    ALONE.note_progress()
    ALONE.close()
    assert (ALONE.rank, ALONE.size, ALONE.is_first, made) == (0, 1, True, [1])
    assert not torch.distributed.is_initialized()
    assert issubclass(JoinedGroup, Group)


def lose_one(group: JoinedGroup, how: str, verb: str, lost: int) -> list[Any]:
    """A rank is lost where all do `verb` for the second time; what the other sees of it."""
    acts = {
        "agree": lambda: group.agree(Status.FINE),
        "decide": lambda: group.decide(lambda: 1),
        "sum": lambda: group.sum([torch.ones(3)]),
        "broadcast": lambda: group.broadcast([torch.ones(3)]),
    }
    acts[verb]()
    group.agree(Status.FINE)
    if group.rank == lost:
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "fails":
            raise ValueError("planted here")
        time.sleep(TEST_SECONDS)
    started = time.monotonic()
    try:
        acts[verb]()
        group.agree(Status.FINE)  # who has nothing to wait for in the verb meets the loss here
    except ProcessLostError as error:
        group.close(str(error))
        return [time.monotonic() - started, str(error)]
    return [0.0, "nothing was lost"]


RANK = r"=training\.rank_of_size\(rank={}, size=2\)"
WORDS = {
    "is killed": rf"training\.rank_(silent|connection_lost)\(rank{RANK}",
    "stops": rf"training\.rank_silent\(rank{RANK}",
    "hangs": rf"training\.rank_no_progress\(rank{RANK}",
    "fails": rf"training\.rank_failed\(name{RANK}, reason=.*planted here",
}
CASES = [
    *((how, "agree", 1) for how in WORDS),
    *((how, "decide", 0) for how in WORDS),
    *(("is killed", verb, lost) for verb in ("sum", "broadcast") for lost in (0, 1)),
    ("stops", "sum", 1),
    ("hangs", "broadcast", 0),
]


def leaves_after_the_last_exchange(group: JoinedGroup) -> float:
    """Rank 0 has left before rank 1 looks whether the exchange is done."""
    total = torch.ones(1)
    if group.rank:
        wait_for = group._wait_for

        def late(work: dist.Work) -> None:
            deadline = time.monotonic() + TEST_SECONDS
            while group.reason_of(0) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            wait_for(work)

        group._wait_for = late  # type: ignore[method-assign]
    group.sum([total])
    return float(total)


def test_who_leaves_after_the_last_exchange_is_not_missed() -> None:
    """A launcher holds the store, which outlives rank 0."""
    port = free_port()
    _holder = store_at(port, is_host=True)
    assert results_of(start_ranks(2, leaves_after_the_last_exchange, port)) == [2.0, 2.0]


def test_who_is_lost_is_named_in_time() -> None:
    """All cases at once, since most of it is waiting. A launcher holds the store, which outlives
    each rank."""
    port = free_port()
    _holder = store_at(port, is_host=True)
    pairs = [
        start_ranks(
            2,
            functools.partial(lose_one, how=how, verb=verb, lost=lost),
            port,
            prefix=f"pair {number}",
            limit_seconds=LIMIT_SECONDS,
        )
        for number, (how, verb, lost) in enumerate(CASES)
    ]
    try:
        for (how, verb, lost), pair in zip(CASES, pairs, strict=True):
            out, errors = pair[1 - lost].communicate(timeout=TEST_SECONDS)
            assert out, f"{how} {verb} {lost}: {errors[-3000:]}"
            seconds, sentence = json.loads(out)
            assert re.match(WORDS[how].format(lost), sentence), (how, verb, errors)
            assert seconds < TEST_SECONDS / 2  # gloo itself would wait for half an hour
            assert pair[1 - lost].returncode == 0, errors
    finally:
        for process in [process for pair in pairs for process in pair]:
            process.kill()
            process.communicate()


def join_where_one_is_lost(rank: int, port: int, number: signal.Signals) -> None:
    """Rank 1 is lost when all are there, and their connections are not; what rank 0 sees of it."""
    torch.set_num_threads(1)
    module.MADE_WITHIN = timedelta(seconds=LIMIT_SECONDS)
    if rank == 1:
        dist.init_process_group = lambda *_, **__: os.kill(os.getpid(), number)
    started = time.monotonic()
    store = dist.PrefixStore(number.name, store_at(port))
    try:
        JoinedGroup(store, rank, 2, torch.device("cpu"), limit_seconds=LIMIT_SECONDS)
    except ProcessLostError as error:
        print(json.dumps([time.monotonic() - started, str(error)]), flush=True)


def test_who_is_lost_while_all_are_connected_is_named_in_time() -> None:
    """No rank looks after the others meanwhile."""
    port = free_port()
    _holder = store_at(port, is_host=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pairs = [
        [
            Forked(functools.partial(join_where_one_is_lost, rank, port, number), **pipes)
            for rank in range(2)
        ]
        for number in (signal.SIGSTOP, signal.SIGKILL)
    ]
    try:
        for first, _ in pairs:
            out, errors = first.communicate(timeout=TEST_SECONDS)
            assert out, errors[-3000:]
            seconds, sentence = json.loads(out)
            assert (
                "training.rank_connection_lost(rank=training.rank_of_size(rank=1, size=2))"
                in sentence
            )
            assert seconds < TEST_SECONDS / 2
    finally:
        for process in [process for pair in pairs for process in pair]:
            process.kill()
            process.communicate()


NONE: dict[int, str] = {}
MISSED, LOST = "training.rank_missed_collective(name=", "training.rank_connection_lost(rank="


@pytest.mark.parametrize(
    ("size", "silent", "come_on", "left", "message", "expected"),
    [
        (2, set(), set(), NONE, TIMED_OUT, f"{MISSED}rank 1 of 2)"),
        (3, set(), {2}, NONE, TIMED_OUT, f"{MISSED}rank 1 of 3)"),
        (3, set(), set(), NONE, TIMED_OUT, f"{MISSED}training.unknown_process())"),
        (3, set(), {1, 2}, NONE, TIMED_OUT, "training.collective_failed(error=[gloo] Timed out"),
        (2, set(), set(), NONE, "broken pipe", "training.collective_failed(error=broken pipe)"),
        (3, {2}, {1}, NONE, TIMED_OUT, f"{LOST}rank 2 of 3)"),
        (3, {1}, {2}, {2: ""}, TIMED_OUT, f"{LOST}rank 1 of 3)"),
        (3, {2}, {1}, {2: ""}, TIMED_OUT, "training.rank_left(name=rank 2 of 3)"),
        (3, {1}, {1}, {2: "full"}, "", "training.rank_failed(name=rank 2 of 3, reason=full)"),
        (3, {0}, set(), NONE, TIMED_OUT, "training.parent_process_gone()"),  # the store is gone
    ],
)
def test_a_broken_exchange_names_the_rank_that_is_to_blame(
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    silent: set[int],
    come_on: set[int],
    left: dict[int, str],
    message: str,
    expected: str,
) -> None:
    monkeypatch.setattr(module, "LAST_WORDS_SECONDS", 0.001)
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.005)
    beats = itertools.count()

    def pulse_of(rank: int) -> Pulse:
        if 0 in silent:
            raise RuntimeError("Connection reset by peer")
        beat = 0 if rank in silent else next(beats)
        return Pulse(beat, beat if rank in come_on else 0, is_busy=False)

    group: Any = SimpleNamespace(
        rank=0,
        size=size,
        watch=do_nothing,
        pulse_of=pulse_of,
        reason_of=left.get,
        name_of=lambda rank: f"rank {rank} of {size}",
    )
    assert str(_who_left(group, RuntimeError(message))).startswith(expected)


class Watched:
    """A group whose other ranks show what a test says, by a clock that a test moves."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, rank: int = 0, limit: float = 100.0
    ) -> None:
        self.now = 0.0
        self.pulses = {1 - rank: Pulse(1, 1, is_busy=False), 2: Pulse(1, 1, is_busy=False)}
        self.left: dict[int, str] = {}
        self.num_watched, self.lost = 0, ""
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        group: Any = JoinedGroup.__new__(JoinedGroup)
        group.rank, group.size, group.limit_seconds = rank, 3, limit
        group.most_silent_seconds, group.is_joining = module.MOST_SILENT_SECONDS, False
        group.pulse_of, group.reason_of = self.pulses.__getitem__, self.left.get
        group.watch = self._count
        self.group = group

    def _count(self) -> None:
        self.num_watched += 1

    def start(self, *ranks: int) -> _Watch:
        return _Watch(self.group, ranks or (1 - self.group.rank,))

    def seconds_until_lost(
        self, *, beats: bool = True, comes_on: bool = False, is_busy: bool = False
    ) -> int:
        """How long a rank that does no more than this is waited for, up to 1000."""
        watch, other = self.start(), 1 - self.group.rank
        for second in range(-2 if self.pulses[other].beats else 1, 1001):
            self.now += 1.0
            pulse = self.pulses[other]
            if second <= 0:  # at first it does all that it should
                self.pulses[other] = Pulse(pulse.beats + 1, pulse.progress + 1, is_busy)
                watch.look()
                continue
            number = pulse.beats + beats if pulse.beats else 0
            self.pulses[other] = Pulse(number, pulse.progress + comes_on, is_busy)
            try:
                watch.look()
            except ProcessLostError as error:
                self.lost = str(error)
                return second
        return 1000


@pytest.mark.parametrize(
    ("rank", "shows", "seconds", "why"),
    [
        (0, {}, 101, "no_progress"),  # the limit of time
        (1, {}, 151, "no_progress"),  # the others give rank 0 longer than it gives them
        (0, {"is_busy": True}, 601, "no_progress"),
        (0, {"comes_on": True}, 1000, None),
        (0, {"beats": False}, 31, "silent"),
        (0, {"beats": False, "is_busy": True}, 31, "silent"),
        (0, {"beats": False, "comes_on": True}, 31, "silent"),
    ],
)
def test_how_long_a_rank_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    shows: dict[str, bool],
    seconds: int,
    why: str | None,
) -> None:
    watched = Watched(monkeypatch, rank)
    assert watched.seconds_until_lost(**shows) == seconds
    name = f"training.rank_of_size(rank={1 - rank}, size=3)"
    sentence = f"training.rank_{why}(rank={name}, seconds={seconds}.0)"
    assert watched.lost == (sentence if why else "")
    assert watched.num_watched == seconds + 4  # for a process that is dead


def test_a_short_limit_holds_for_the_silent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, limit=8.0)
    assert watched.seconds_until_lost(beats=False, comes_on=True) == 9


def test_who_imports_packages_still_may_be_silent_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, limit=20.0)
    watched.group.is_joining = True
    seconds = watched.seconds_until_lost(beats=False, comes_on=True)
    assert seconds == 121


@pytest.mark.parametrize(("limit", "seconds"), [(50.0, 121), (200.0, 201)])
def test_who_has_not_come_yet_has_at_least_two_minutes(
    monkeypatch: pytest.MonkeyPatch, limit: float, seconds: int
) -> None:
    watched = Watched(monkeypatch, limit=limit)
    watched.group.is_joining = True
    watched.pulses[1] = Pulse(0, 0, is_busy=True)
    assert watched.seconds_until_lost(beats=False, is_busy=True) == seconds
    assert watched.lost.startswith("training.rank_never_joined(rank=training.rank_of_size(rank=1, ")


def test_after_a_request_to_stop_silence_is_borne_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    watched.group.request_stop("asked")
    assert watched.seconds_until_lost(beats=False) == 6


def test_where_this_process_was_stopped_the_others_may_have_been_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    watch = watched.start()
    watched.now += 1000.0  # one look
    watch.look()
    assert watched.seconds_until_lost(beats=False) == 31


def test_only_who_is_waited_for_is_looked_at_and_who_has_left_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    watched.left[2] = "its disk is full"
    watch = watched.start(1)
    watch.look()
    watch.look([])
    with pytest.raises(ProcessLostError) as caught:
        watch.look([2])
    expected = "training.rank_failed(name=training.rank_of_size(rank=2, size=3), reason=its disk is"
    assert str(caught.value).startswith(expected)
    watched.left[2] = ""  # its work is done, and rank 0 waits for it
    with pytest.raises(ProcessLostError, match=r"^training\.rank_left\(name=.*\(rank=2, size=3\)"):
        watch.look([2])


def joined(store: dist.Store, rank: int, size: int = 2) -> Any:
    """A rank that has joined already, without the others and their process group."""
    group: Any = JoinedGroup.__new__(JoinedGroup)
    group.rank, group.size, group._store = rank, size, store
    group._round, group._done_keys, group._stop_reason = 0, [], None
    group._pulse = SimpleNamespace(progress=0, is_busy=False, stop=do_nothing)
    group._is_open, group._has_process_group = True, False
    group._on_gpu, group._unfinished = False, None
    return group


FINE: tuple[Status, str] = (Status.FINE, "")


@pytest.mark.parametrize(
    ("own", "stop", "other", "agreed"),
    [
        (FINE, None, (Status.STOP, "due"), (Status.STOP, "due")),
        ((Status.STOP, "own"), None, (Status.STOP, "other"), (Status.STOP, "own")),
        (FINE, "SIGTERM", FINE, (Status.STOP, "SIGTERM")),
        ((Status.STOP, "own"), "SIGTERM", FINE, (Status.STOP, "own")),
        ((Status.NOT_FINITE, "own"), "SIGTERM", (Status.STOP, ""), (Status.NOT_FINITE, "own")),
    ],
)
def test_the_most_severe_status_holds_with_its_reason(
    own: tuple[Status, str],
    stop: str | None,
    other: tuple[Status, str],
    agreed: tuple[Status, str],
) -> None:
    """The store keeps nothing of rounds before the last one."""
    store = dist.HashStore()
    first, second = joined(store, 0), joined(store, 1)
    store.set("status/1/1", json.dumps(other))
    if stop is not None:
        first.request_stop(stop)
    assert (first.agree(*own), first.reason) == agreed
    assert (second.agree(*other), second.reason) == agreed
    assert json.loads(store.get("status/1/1")) == [*other]
    store.set("status/2/1", json.dumps(FINE))
    first.agree(*FINE)
    keys = ("status/1/1", "agreed/1", "status/2/1", "agreed/2")
    assert [store.check([key]) for key in keys] == [False, False, True, True]


class Lost:
    """The store of a process that is gone."""

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("Connection reset by peer")

    def set(self, key: str, text: str) -> None:
        raise RuntimeError("Connection reset by peer")


def test_others_see_the_pulse_and_the_end_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.001)
    store = dist.HashStore()
    first, second = joined(store, 0), joined(store, 1)
    assert first.pulse_of(1) == Pulse(0, 0, is_busy=True)  # it has not come yet
    second._pulse = module._Pulse(store, 1, do_nothing)

    def shows(progress: int, is_busy: bool) -> bool:
        deadline, seen = time.monotonic() + 10, Pulse(0, 0, is_busy=True)
        while (seen.progress, seen.is_busy) != (progress, is_busy) or seen.beats < 2:
            assert time.monotonic() < deadline, seen
            seen = first.pulse_of(1)
        return True

    with second.busy():
        with second.busy():
            second.note_progress()
        assert shows(2, is_busy=True)
    assert shows(3, is_busy=False)
    assert (first.reason_of(1), first.has_ended(1)) == (None, False)
    second.leave("planted")
    second.leave("again")
    first.leave()
    assert (first.reason_of(1), second.reason_of(0)) == ("planted", "")
    assert first.has_ended(1)
    assert second.has_ended(0)
    assert not joined(Lost(), 1).has_ended(0)  # type: ignore[arg-type]
    orphaned = threading.Event()
    module._Pulse(Lost(), 1, orphaned.set)  # type: ignore[arg-type]
    assert orphaned.wait(10)


@pytest.mark.parametrize(
    ("on_gpu", "is_done", "expected"),
    [
        (False, None, ["destroyed"]),
        (False, True, ["destroyed"]),
        (False, False, []),  # it would wait for the rank that hangs
        (True, False, ["aborted"]),
    ],
)
def test_a_process_group_ends_once_and_waits_for_no_exchange_that_hangs(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool, is_done: bool | None, expected: list[str]
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(module, "LAST_WORDS_SECONDS", 0.01)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ends.append("destroyed"))
    monkeypatch.setattr(
        dist.distributed_c10d, "_abort_process_group", lambda: ends.append("aborted")
    )
    group = joined(dist.HashStore(), 1)
    group._has_process_group, group._on_gpu = True, on_gpu
    if is_done is not None:
        group._unfinished = SimpleNamespace(is_completed=lambda: is_done)
    group.close("planted")
    group.close("again")
    assert (ends, group.reason_of(1)) == (expected, "planted")


@pytest.mark.parametrize(
    ("size", "waited", "seconds"),
    [
        (2, 0.0, 0.000125),
        (2, 0.05, 0.001),
        (8, 5.0, 0.002),
        (8, 5.1, 0.02),
        (16, 5.1, 0.04),  # of many ranks each reads the store less often
    ],
)
def test_the_store_is_read_less_often_the_longer_it_takes(
    size: int, waited: float, seconds: float
) -> None:
    assert joined(dist.HashStore(), 1, size)._pause(waited) == pytest.approx(seconds)


def test_buckets_are_of_one_type_and_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET_BYTES", 16)
    sizes = [2, 0, 2, 1, 9, 3]
    tensors = [torch.zeros(n) for n in sizes]
    doubles = [torch.zeros(1, dtype=torch.float64) for _ in range(3)]
    elsewhere = torch.zeros(1, device="meta")
    mixed = [tensors[0], doubles[0], elsewhere, *tensors[1:4], doubles[1], *tensors[4:], doubles[2]]
    found = [[(t.dtype, t.numel()) for t in bucket] for bucket in module.buckets_of(mixed)]
    single, double = torch.float32, torch.float64
    assert found == [
        [(single, 2), (single, 2)],
        [(single, 1)],
        [(single, 9)],
        [(double, 1), (double, 1)],
        [(single, 1)],  # on another device
        [(single, 3)],
        [(double, 1)],
    ]
