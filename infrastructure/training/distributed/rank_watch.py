"""Detection of ranks that are stopped (SIGSTOP), or that remain after rank 0 has ended.

torch's agent would wait for such ranks forever. While the ranks train, they check on each other
(`group.py`). Before and after that, a rank may wait for one that a signal, a debugger or a job
scheduler has stopped. A stopped process does not notice a request to end.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from infrastructure.core.agent import LOOK_SECONDS
from infrastructure.core.messages import phrase

# Later than the other ranks notice during training: they report more, and save.
MOST_STOPPED_SECONDS = 45.0
# Rank 0 ends last: the others have done their part.
MOST_SECONDS_AFTER_FIRST = 60.0
LONG_PAUSE_SECONDS = 5.0  # between two checks


def living_ranks() -> dict[int, psutil.Process]:
    """Return the rank processes that this process started and that still run, by rank."""
    ranks: dict[int, psutil.Process] = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            number = child.environ().get("RANK")
            if number is not None and _is_alive(child):
                ranks[int(number)] = child
    return ranks


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@dataclass
class RankWatch:
    """A check that kills ranks for which the other ranks or torch's agent would wait forever.

    Args:
        size: number of ranks.

    Attributes:
        reasons: pid → why the rank was killed, which its exit code does not show.
    """

    size: int
    reasons: dict[int, str] = field(default_factory=dict)
    _ranks: dict[int, psutil.Process] = field(default_factory=dict)
    _seconds_stopped: dict[int, float] = field(default_factory=dict)  # by pid
    _seconds_after_first: float = 0.0

    def look(self, seconds: float) -> None:
        """Check all ranks.

        Args:
            seconds: time since the last check.
        """
        if seconds > LONG_PAUSE_SECONDS:  # this process was itself stopped, perhaps with the others
            return
        if len(self._ranks) < self.size:  # searching for them is slow on a large machine
            self._ranks |= living_ranks()
        living = {rank: one for rank, one in self._ranks.items() if _is_alive(one)}
        for process in living.values():
            with suppress(psutil.NoSuchProcess):
                self._look_at(process, seconds)
        if 0 in self._ranks and 0 not in living:
            self._seconds_after_first += seconds
            if self._seconds_after_first > MOST_SECONDS_AFTER_FIRST:
                for process in living.values():
                    self._kill(process, phrase("training.rank_outlived_rank_0"))

    def _look_at(self, process: psutil.Process, seconds: float) -> None:
        is_stopped = process.status() == psutil.STATUS_STOPPED
        stopped = self._seconds_stopped.get(process.pid, 0.0) + seconds if is_stopped else 0.0
        self._seconds_stopped[process.pid] = stopped
        if stopped > MOST_STOPPED_SECONDS:
            text = phrase("training.rank_stopped_by_signal", seconds=stopped)
            self._kill(process, text)

    def _kill(self, process: psutil.Process, reason: str) -> None:
        self.reasons.setdefault(process.pid, reason)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


@contextmanager
def ranks_watched(size: int) -> Iterator[RankWatch]:
    """Check on the ranks that this process started, in a thread, while the context lasts."""
    watch, is_over = RankWatch(size), threading.Event()

    def look() -> None:
        before = time.monotonic()
        while not is_over.wait(LOOK_SECONDS):
            now = time.monotonic()
            watch.look(now - before)
            before = now

    thread = threading.Thread(target=look, daemon=True, name="temper-rank-watch")
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()
