"""Joint operations of the ranks of one run: agree, decide, sum, broadcast.

In a run with one process, these operations do nothing. With several processes, tensors go through a
process group of `torch.distributed`, and small values go through its key-value store. A rank that
waits also checks on the other ranks, so a dead, stopped or stuck rank is found and named within a
time limit. All ranks call the same methods in the same order.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist

# Imported before there is a group: its functions keep the group that they find as a default
# forever, and with it gloo's threads, which now and then abort a process at its end.
import torch.distributed.nn.functional

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.messages import phrase
from infrastructure.optimization.device_errors import is_device_fault

BUCKET_BYTES = 32 << 20
IN_FLIGHT = 2  # buckets that are exchanged at a time
ROUND_SECONDS = 0.5  # wait time after which the others are checked on
BEAT_SECONDS = 0.5
# The store's own wait prints a warning to the terminal each time.
POLL_SECONDS, LONGEST_PAUSE_SECONDS, LONG_SECONDS = 0.0005, 0.02, 5.0
LAST_WORDS_SECONDS = 2.0  # time for a failed rank to give its reason
# A process group aborts its own waits after this time; the group above is quicker.
BACKSTOP = timedelta(minutes=30)
# All ranks are there when it is created. No check runs in the meantime, and no signal is handled.
MADE_WITHIN = timedelta(minutes=1)
LIMIT_SECONDS = 600.0
BUSY_TIMES = 6.0  # factor for work without countable steps, such as loading a model
MOST_SILENT_SECONDS = 30.0
LEAST_JOINING_SECONDS = 120.0  # for a rank that still imports packages, whatever the limit is
LONG_PAUSE_SECONDS = 5.0  # between two looks of one wait, which takes half a second
# A rank is often asked to stop because another rank has died.
SILENT_AT_STOP_SECONDS = 5.0
# The others give rank 0 more time than it gives them: it reports which rank is lost.
PATIENCE_WITH_FIRST = 1.5


class Status(IntEnum):
    """The status of a rank. The status of a group is the most severe status of its ranks."""

    FINE = 0
    STOP = 1
    OUT_OF_MEMORY = 2
    NOT_FINITE = 3
    FAILED = 4


Welcome = Callable[[DeploymentConfig, "Group"], None]


class Group:
    """A group of one process, whose operations do nothing. `JoinedGroup` has several ranks.

    Attributes:
        rank: number of this process; rank 0 decides.
        size: number of processes.
        local_rank: number of this process on its machine, which selects its GPU.
        reason: reason given by the rank with the highest status in the last `agree`; "": none.
    """

    rank = 0
    size = 1
    local_rank = 0
    reason = ""

    @property
    def is_first(self) -> bool:
        """True if this is rank 0, which decides."""
        return self.rank == 0

    def launch(self) -> None:
        """Start the other ranks, as `Ranks` does; the ranks of a group run already."""

    def join(self, welcome: Welcome = do_nothing) -> "Group":
        """Return this group, which this process has already joined; see `Ranks.join`."""
        return self

    def agree(self, status: Status, reason: str = "") -> Status:
        """Return the highest status of all ranks.

        Args:
            reason: why this rank has its status. Afterwards, `reason` on every rank is the reason
                given by the rank with the highest status.

        Raises:
            ProcessLostError: a rank failed, is gone, or makes no progress. The message names it.
        """
        self.reason = reason
        return status

    def decide(self, make: Callable[[], Any]) -> Any:
        """Return on every rank the value that `make` returns on rank 0.

        Args:
            make: returns a JSON value; called only on rank 0.

        Raises:
            ProcessLostError: as in `agree`.
        """
        return make()

    def sum(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors by their sum over all ranks, which is bit-identical on every rank.

        Raises:
            ProcessLostError: as in `agree`.
        """

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors on every rank by those of rank 0.

        Raises:
            ProcessLostError: as in `agree`.
        """

    def note_progress(self) -> None:
        """Report progress during long work, so that other ranks do not consider this rank stuck."""

    def busy(self) -> AbstractContextManager[None]:
        """Return a context for long work without progress reports, such as loading a model.

        Inside the context, the other ranks wait several times as long for this rank.
        """
        return nullcontext()

    def watched(self) -> AbstractContextManager[None]:
        """Return a context that makes torch's communication errors name the lost rank.

        Raises:
            ProcessLostError: a rank is gone.
        """
        return nullcontext()

    def request_stop(self, reason: str) -> None:
        """Set this rank's status to at least STOP from now on; safe in a signal handler."""

    def leave(self, reason: str | None = None) -> None:
        """Announce the end of this rank to the others, before `close` releases the resources.

        Args:
            reason: why this rank fails, which the other ranks report. None: its work is done.
        """

    def close(self, reason: str | None = None) -> None:
        """Leave the group and release all resources; a second call does nothing."""


ALONE = Group()


class JoinedGroup(Group):
    """A group of several ranks. Creating it joins this rank and waits for the others.

    Args:
        store: a key-value store that all ranks use, with a prefix of its own.
        device: the device on which this rank computes.
        limit_seconds: a rank that others wait for counts as lost after this time without progress.
            A rank without a heartbeat counts as lost after at most half a minute.
        watch: called while waiting; raises if a process is already known to be gone.
        on_orphaned: called in another thread when the store, and with it the process that started
            the training, is gone.

    Raises:
        ProcessLostError: not all ranks joined.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        device: torch.device,
        *,
        local_rank: int | None = None,
        limit_seconds: float = LIMIT_SECONDS,
        watch: Callable[[], None] = do_nothing,
        on_orphaned: Callable[[], None] = do_nothing,
    ) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.local_rank = rank if local_rank is None else local_rank
        self.limit_seconds, self.watch = limit_seconds, watch
        self.reason = ""
        self._store = store
        self._round, self._done_keys = 0, list[str]()
        self._stop_reason: str | None = None
        self.most_silent_seconds = MOST_SILENT_SECONDS
        self.is_joining = True  # a rank that still imports packages is silent
        self._is_open, self._has_process_group = True, False
        self._unfinished: dist.Work | None = None
        self._pulse = _Pulse(store, rank, on_orphaned)
        self._on_gpu = device.type == "cuda" and dist.is_nccl_available()
        try:
            self.agree(Status.FINE)  # all are there: the process group is created in a moment
            self.is_joining = False
            with self._named_errors():
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if self._on_gpu else "gloo",
                    store=dist.PrefixStore("process-group", store),
                    rank=rank,
                    world_size=size,
                    timeout=MADE_WITHIN,
                )
                self._has_process_group = True
                dist.distributed_c10d._set_pg_timeout(BACKSTOP)
        except BaseException as error:
            self.close(str(error))
            raise

    def agree(self, status: Status, reason: str = "") -> Status:
        if self._stop_reason is not None and status < Status.STOP:
            status, reason = Status.STOP, self._stop_reason
        number = self._next_round()
        answer = f"agreed/{number}"
        if not self.is_first:
            self._set(f"status/{number}/{self.rank}", json.dumps([status, reason]))
            self._wait([answer], [0])
            highest, self.reason = json.loads(self._get(answer))
            return Status(highest)
        keys = [f"status/{number}/{rank}" for rank in range(1, self.size)]
        self._wait(keys, range(1, self.size))
        standing = [(status, reason), *((Status(s), text) for s, text in map(self._json, keys))]
        highest, self.reason = max(standing, key=lambda one: one[0])
        self._set(answer, json.dumps([highest, self.reason]))
        # All ranks have read the answers from before this round.
        for key in self._done_keys:
            self._store.delete_key(key)
        self._done_keys = [*keys, answer]
        return Status(highest)

    def decide(self, make: Callable[[], Any]) -> Any:
        key = f"decided/{self._next_round()}"
        if self.is_first:
            with self.busy():
                text = json.dumps(make())
            self._set(key, text)
            self._done_keys.append(key)
            return json.loads(text)
        self._wait([key], [0])
        return self._json(key)

    def sum(self, tensors: Iterable[torch.Tensor]) -> None:
        self._exchange(dist.all_reduce, tensors, with_values=True)

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        self._exchange(_broadcast, tensors, with_values=False)

    def note_progress(self) -> None:
        self._pulse.progress += 1

    @contextmanager
    def busy(self) -> Iterator[None]:
        was_busy, self._pulse.is_busy = self._pulse.is_busy, True
        try:
            yield
        finally:
            self._pulse.is_busy = was_busy
            self._pulse.progress += 1

    def watched(self) -> AbstractContextManager[None]:
        return self._named_errors()

    def request_stop(self, reason: str) -> None:
        self._stop_reason = reason
        self.most_silent_seconds = SILENT_AT_STOP_SECONDS

    def leave(self, reason: str | None = None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        with suppress(RuntimeError):  # the store is gone with its process
            self._store.set(f"left/{self.rank}", json.dumps(reason))
        self._pulse.stop()

    def close(self, reason: str | None = None) -> None:
        self.leave(reason)
        if not self._has_process_group:
            return
        self._has_process_group = False
        if self._on_gpu:  # destroying waits for pending exchanges
            dist.distributed_c10d._abort_process_group()
        elif self._unfinished is None or _is_done_within(self._unfinished, LAST_WORDS_SECONDS):
            dist.destroy_process_group()
        # otherwise it waits for a hanging rank, and so would this: the process ends without it

    # Exchange of tensors

    def _exchange(
        self,
        start: Callable[..., dist.Work | None],
        tensors: Iterable[torch.Tensor],
        *,
        with_values: bool,
    ) -> None:
        """Exchange tensors in buckets, a few at a time.

        Args:
            with_values: treat the tensors as numbers; otherwise as raw bytes.
        """
        self._next_round()
        going: list[tuple[dist.Work, torch.Tensor, list[torch.Tensor]]] = []
        for bucket in buckets_of(tensors):
            flat = _flat(bucket)
            with self._named_errors():
                work = start(flat if with_values else flat.view(torch.uint8), async_op=True)
            assert work is not None
            going.append((work, flat, bucket))
            if len(going) >= IN_FLIGHT:
                self._finish(*going.pop(0))
        for each in going:
            self._finish(*each)

    def _finish(self, work: dist.Work, flat: torch.Tensor, bucket: list[torch.Tensor]) -> None:
        self._unfinished = work
        with self._named_errors():
            self._wait_for(work)
        self._unfinished = None
        _copy_back(flat, bucket)

    def _wait_for(self, work: dist.Work) -> None:
        """Wait for an exchange, and check on the other ranks once it has taken a while.

        Checking earlier could find a rank that has already left after finishing its part.
        """
        watch: _Watch | None = None
        others = [rank for rank in range(self.size) if rank != self.rank]
        if self._on_gpu:
            looked = time.monotonic()
            while not work.is_completed():
                if time.monotonic() - looked > ROUND_SECONDS:
                    watch = watch or _Watch(self, others)
                    watch.look()
                    looked = time.monotonic()
                time.sleep(POLL_SECONDS)
            work.wait()
            return
        while True:
            try:
                work.wait(timedelta(seconds=ROUND_SECONDS))
            except RuntimeError:
                if work.is_completed():
                    raise
            else:
                return
            watch = watch or _Watch(self, others)
            watch.look()

    def _named_errors(self) -> "_NamedErrors":
        return _NamedErrors(self)

    # The store

    def _next_round(self) -> int:
        self._round += 1
        self._pulse.progress += 1
        return self._round

    def _set(self, key: str, text: str) -> None:
        with self._named_errors():
            self._store.set(key, text)

    def _get(self, key: str) -> str:
        with self._named_errors():
            return self._store.get(key).decode()

    def _json(self, key: str) -> Any:
        return json.loads(self._get(key))

    def _wait(self, keys: Sequence[str], whose: Sequence[int]) -> None:
        """Wait until all keys are set in the store.

        Args:
            whose: for each key, the rank that sets it.

        Raises:
            ProcessLostError: one of the ranks is lost.
        """
        started = time.monotonic()
        watch, looked = None, started
        while not self._are_set(keys):
            now = time.monotonic()
            if now - looked > ROUND_SECONDS:
                watch = watch or _Watch(self, whose)
                watch.look([r for r, key in zip(whose, keys, strict=True) if not self._is_set(key)])
                looked = time.monotonic()
            time.sleep(self._pause(now - started))

    def _pause(self, waited_seconds: float) -> float:
        """Return the seconds until the next poll of the store, which increase with
        `waited_seconds`.
        """
        longest = LONGEST_PAUSE_SECONDS if waited_seconds > LONG_SECONDS else POLL_SECONDS * 4
        return min(longest, max(POLL_SECONDS / 4, waited_seconds / 50)) * max(1.0, self.size / 8)

    def _are_set(self, keys: Sequence[str]) -> bool:
        with self._named_errors():
            return bool(self._store.check(list(keys)))

    def _is_set(self, key: str) -> bool:
        return self._are_set([key])

    def has_ended(self, rank: int) -> bool:
        """Return whether a rank has announced its end; False if the store is gone."""
        with suppress(RuntimeError):
            return self.reason_of(rank) is not None
        return False

    def reason_of(self, rank: int) -> str | None:
        """Return the reason that a rank gave when it left: "" for no reason, None if it has not
        left.
        """
        key = f"left/{rank}"
        if not self._store.check([key]):
            return None
        return json.loads(self._store.get(key)) or ""

    def pulse_of(self, rank: int) -> "Pulse":
        """Return the latest heartbeat of a rank."""
        key = f"pulse/{rank}"
        if not self._store.check([key]):
            return Pulse(0, 0, is_busy=True)  # it is not there yet
        beats, progress, is_busy = map(int, self._store.get(key).decode().split())
        return Pulse(beats, progress, bool(is_busy))

    def name_of(self, rank: int) -> str:
        """Return the name of a rank for messages, including the number of ranks."""
        return phrase("training.rank_of_size", rank=rank, size=self.size)


@dataclass(frozen=True)
class Pulse:
    """A heartbeat of a rank: its numbers of beats and of progress reports, and whether it is in
    `busy`.
    """

    beats: int
    progress: int
    is_busy: bool


class _NamedErrors:
    """A context that turns errors of torch.distributed into one that names the lost rank."""

    def __init__(self, group: JoinedGroup) -> None:
        self.group = group

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if not isinstance(error, RuntimeError) or is_device_fault(error):
            return
        raise _who_left(self.group, error) from None


def _who_left(group: JoinedGroup, error: Exception) -> ProcessLostError:
    """Return an error that names the rank whose end interrupted an exchange of tensors.

    The end of one rank also interrupts the exchanges between other ranks. So the error names, in
    this order, a rank that gave a reason for its end, a rank that sends no heartbeat while this
    function waits, or a rank that left without a reason.
    """
    others = [rank for rank in range(group.size) if rank != group.rank]
    began = time.monotonic()
    try:
        pulses = {rank: group.pulse_of(rank) for rank in others}
        while time.monotonic() - began < LAST_WORDS_SECONDS:
            group.watch()
            for rank in others:
                if reason := group.reason_of(rank):
                    name = group.name_of(rank)
                    return ProcessLostError("training.rank_failed", name=name, reason=reason)
            time.sleep(BEAT_SECONDS / 5)
        now = {rank: group.pulse_of(rank) for rank in others}
        silent = [rank for rank in others if now[rank] == pulses[rank]]
        stuck = [rank for rank in others if now[rank].progress == pulses[rank].progress]
        left = [rank for rank in others if group.reason_of(rank) is not None]
    except RuntimeError:  # the store is gone
        return ProcessLostError("training.parent_process_gone")
    for rank in silent:
        if rank not in left:
            return ProcessLostError("training.rank_connection_lost", rank=group.name_of(rank))
    if left:
        return ProcessLostError("training.rank_left", name=group.name_of(left[0]))
    if "timed out" in str(error).lower() and stuck:
        name = group.name_of(stuck[0]) if len(stuck) == 1 else phrase("training.unknown_process")
        return ProcessLostError("training.rank_missed_collective", name=name)
    return ProcessLostError("training.collective_failed", error=error)


@dataclass
class _Seen:
    """The observations of one rank during one wait: its last heartbeat, and the time of each
    change.
    """

    beats: int
    progress: int
    heard_at: float
    came_on_at: float


class _Watch:
    """A check, during one wait, of the ranks that this process is waiting for."""

    def __init__(self, group: JoinedGroup, ranks: Sequence[int]) -> None:
        self.group, self.ranks = group, list(ranks)
        self.limit = group.limit_seconds * (1.0 if group.is_first else PATIENCE_WITH_FIRST)
        self.seen: dict[int, _Seen] = {}
        self.looked_at = time.monotonic()
        self.look()

    @property
    def _most_silent_seconds(self) -> float:
        if self.group.is_joining:
            return BUSY_TIMES * self.limit
        return min(self.limit, self.group.most_silent_seconds)

    @property
    def _joins_within(self) -> float:
        """The seconds within which a rank must send its first heartbeat."""
        return max(self.limit, LEAST_JOINING_SECONDS)

    def look(self, ranks: Sequence[int] | None = None) -> None:
        """Check the ranks.

        Raises:
            ProcessLostError: one of `ranks` (None: all watched ranks) has left, is silent, or makes
                no progress.
        """
        self.group.watch()
        self._forgive_pause()
        with self.group._named_errors():
            for rank in self.ranks if ranks is None else ranks:
                self._look_at(rank)

    def _forgive_pause(self) -> None:
        """Extend the time limits if this process was paused, for instance together with its
        machine.

        The other ranks may have been paused, too.
        """
        now = time.monotonic()
        pause, self.looked_at = now - self.looked_at, now
        if pause > LONG_PAUSE_SECONDS:
            for seen in self.seen.values():
                seen.heard_at, seen.came_on_at = seen.heard_at + pause, seen.came_on_at + pause

    def _look_at(self, rank: int) -> None:
        group, now = self.group, time.monotonic()
        reason = group.reason_of(rank)
        if reason is not None:
            code = "training.rank_failed" if reason else "training.rank_left"
            about = {"reason": reason} if reason else {}
            raise ProcessLostError(code, name=group.name_of(rank), **about)
        pulse = group.pulse_of(rank)
        seen = self.seen.setdefault(rank, _Seen(pulse.beats, pulse.progress, now, now))
        if pulse.beats != seen.beats:
            seen.beats, seen.heard_at = pulse.beats, now
        if pulse.progress != seen.progress:
            seen.progress, seen.came_on_at = pulse.progress, now
        silent, stuck = now - seen.heard_at, now - seen.came_on_at
        if silent > self._most_silent_seconds or (not pulse.beats and silent > self._joins_within):
            raise ProcessLostError(
                "training.rank_silent" if pulse.beats else "training.rank_never_joined",
                rank=group.name_of(rank),
                seconds=silent,
            )
        if stuck > self.limit * (BUSY_TIMES if pulse.is_busy else 1.0):
            raise ProcessLostError(
                "training.rank_no_progress", rank=group.name_of(rank), seconds=stuck
            )


class _Pulse:
    """A thread that shows the other ranks that this process is alive and makes progress."""

    def __init__(self, store: dist.Store, rank: int, on_orphaned: Callable[[], None]) -> None:
        self.progress, self.is_busy = 0, False
        self._store, self._key, self._on_orphaned = store, f"pulse/{rank}", on_orphaned
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="group-pulse")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        beats = 0
        while not self._stopped.is_set():
            beats += 1
            try:
                self._store.set(self._key, f"{beats} {self.progress} {int(self.is_busy)}")
            except RuntimeError:
                if not self._stopped.is_set():
                    self._on_orphaned()
                return
            self._stopped.wait(BEAT_SECONDS)


def _is_done_within(work: dist.Work, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not work.is_completed() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return work.is_completed()


def _broadcast(flat: torch.Tensor, async_op: bool) -> dist.Work | None:
    return dist.broadcast(flat, 0, async_op=async_op)


def buckets_of(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield buckets of tensors with the same dtype and device, up to a size limit.

    All ranks get the same buckets if they have the same tensors.
    """
    filling: dict[tuple[torch.dtype, str], list[torch.Tensor]] = {}
    sizes: dict[tuple[torch.dtype, str], int] = {}
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        kind = tensor.dtype, tensor.device.type
        if kind in filling and sizes[kind] + tensor.nbytes > BUCKET_BYTES:
            yield filling.pop(kind)
        if kind not in filling:
            filling[kind], sizes[kind] = [], 0
        filling[kind].append(tensor)
        sizes[kind] += tensor.nbytes
    yield from filling.values()


def _flat(bucket: list[torch.Tensor]) -> torch.Tensor:
    """Return all elements of a bucket of tensors as one 1-D tensor.

    The result shares memory with the bucket's tensor if the bucket has only one, which is
    contiguous.
    """
    if len(bucket) == 1:
        return bucket[0].detach().contiguous().view(-1)
    return torch.cat([tensor.detach().reshape(-1) for tensor in bucket])


def _copy_back(flat: torch.Tensor, bucket: list[torch.Tensor]) -> None:
    parts = flat.split([tensor.numel() for tensor in bucket])
    for tensor, part in zip(bucket, parts, strict=True):
        if tensor.data_ptr() != part.data_ptr():
            tensor.detach().copy_(part.view_as(tensor))
