"""Side by side on a busy machine: systems that train at once, one step of each in turn.

Whatever else the machine does is then done to all of them alike, and the ratio of two neighbouring
steps means something where two runs after each other do not. Each system trains in a process of its
own, as everywhere else: oneDNN keeps a thousand kernels for a process, and shapes of the others
would push out a system's own. It waits in its own step callback, asleep, while the others have
their turn.
"""

import multiprocessing
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import mean
from typing import Any

import torch

from infrastructure.core.process_memory import peak_resident_bytes

NUM_RESAMPLES = 2000
# What most systems import; a system's process is a copy of one that has done so.
IMPORTED_ONCE = ("torch", "transformers")
PAUSE_SECONDS = 0.01  # OpenMP's threads look for work a little longer, before they sleep


class Clock:
    """A system's side: it does one step when it is its turn, and the time of it is taken.

    Args:
        turns: to the process that gives them.
        now: seconds; of the processor where the machine is busy, since one system runs at a time.

    Attributes:
        num_tokens: real tokens that the system has trained on; it counts them itself.
    """

    def __init__(self, turns: Connection, now: Callable[[], float]) -> None:
        self.num_tokens = 0
        self._turns = turns
        self._now = now
        self._counted = 0
        self._started = 0.0

    def mark(self) -> None:
        """The system says that a step is done; returns when it may do the next one."""
        self._turns.send(Step(self._now() - self._started, self.num_tokens - self._counted))
        self._counted = self.num_tokens
        self.wait()

    def wait(self) -> None:
        self._turns.recv()
        self._started = self._now()


@dataclass(frozen=True)
class Step:
    seconds: float
    num_tokens: int


@dataclass(frozen=True)
class End:
    """What a system gave, or its traceback where it failed, and its process's most memory."""

    result: Any
    failure: str | None
    peak_bytes: int


System = Callable[[Clock], Any]


@dataclass
class Turns:
    """What a system has done.

    Attributes:
        seconds: duration of each step.
        speeds: tokens per second of each step.
        end: what it gave, and its memory; None until it has come to its end.
    """

    seconds: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    end: End | None = None

    @property
    def result(self) -> Any:
        assert self.end is not None
        return self.end.result

    @property
    def peak_bytes(self) -> int:
        assert self.end is not None
        return self.end.peak_bytes

    def step(self, system: Connection) -> float | None:
        """Let the system do one step, and give its speed; None where it comes to its end."""
        if self.end is not None:
            return None
        system.send(None)
        done: Step | End = system.recv()
        if isinstance(done, End):
            self.end = done
            return None
        self.seconds.append(done.seconds)
        self.speeds.append(done.num_tokens / done.seconds)
        return self.speeds[-1]


def take_turns(
    systems: Mapping[str, System],
    num_steps: int,
    title: str,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, Turns]:
    """Train all systems, one step of each in turn; tells the speeds on stderr.

    Args:
        systems: each trains for `num_steps` steps, and marks the clock it is given after each. Its
            process imports it by its name.

    Returns:
        What each has done, with the time of every step.

    Raises:
        RuntimeError: a system failed; the others are done.
        EOFError: a system's process was killed.
    """
    turns = {name: Turns() for name in systems}
    with _started(systems, now) as connections:
        for step in range(num_steps + 1):  # after the last step they come to their end
            for name, connection in connections.items():
                time.sleep(PAUSE_SECONDS)
                if (speed := turns[name].step(connection)) is not None:
                    line = f"{title}, step {step + 1}: {name} {speed:.0f} tokens/s"
                    print(line, file=sys.stderr, flush=True)
    for name, done in turns.items():
        if done.end is not None and done.end.failure is not None:
            raise RuntimeError(f"{name} failed:\n{done.end.failure}")
    return turns


@contextmanager
def _started(
    systems: Mapping[str, System], now: Callable[[], float]
) -> Iterator[dict[str, Connection]]:
    """A process for each system, which waits for its first turn."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED_ONCE))
    connections: dict[str, Connection] = {}
    processes = []
    try:
        for name, system in systems.items():
            ours, its = context.Pipe()
            given = (its, system, now, torch.get_num_threads())
            processes.append(context.Process(target=_train, args=given, name=name, daemon=True))
            processes[-1].start()
            its.close()  # so that its death is heard here
            connections[name] = ours
        yield connections
    finally:
        for process in processes:
            process.terminate()
            process.join()
        for connection in connections.values():
            connection.close()


def _train(turns: Connection, system: System, now: Callable[[], float], num_threads: int) -> None:
    """The program of a system's process."""
    sys.stdout = sys.stderr  # stdout is for the result
    torch.set_num_threads(num_threads)
    clock = Clock(turns, now)
    clock.wait()
    result, failure = None, None
    try:
        result = system(clock)
    except Exception:  # whatever it is, the others go on
        failure = traceback.format_exc()
    turns.send(End(result, failure, peak_resident_bytes()))


def interval(
    values: Sequence[Any], statistic: Callable[[Sequence[Any]], float] = mean
) -> tuple[float, float]:
    """The 95% bootstrap interval of a statistic of `values`."""
    generator = random.Random(0)
    ordered = sorted(
        statistic(generator.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)
    )
    return ordered[int(0.025 * NUM_RESAMPLES)], ordered[int(0.975 * NUM_RESAMPLES)]
