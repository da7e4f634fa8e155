"""Side by side on a busy machine: systems that train at once, one step of each in turn.

Whatever else the machine does is then done to all of them alike, and the ratio of two neighbouring
steps means something where two runs after each other do not. Each system trains in its own thread,
and waits in its own step callback while the others have their turn.
"""

import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import mean

NUM_RESAMPLES = 2000


class Clock:
    """Lets a system do one step when it is its turn, and takes the time of it.

    Args:
        now: seconds; of the processor where the machine is busy, since one system runs at a time.

    Attributes:
        num_tokens: real tokens that the system has trained on; it counts them itself.
        speeds: tokens per second of each step.
        seconds: duration of each step.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.num_tokens = 0
        self._now = now
        self.seconds: list[float] = []
        self.speeds: list[float] = []
        self._counted = 0
        self._started = 0.0
        self._has_ended = False
        self._may_step = threading.Semaphore(0)
        self._has_stepped = threading.Semaphore(0)

    def mark(self) -> None:
        """The system says that a step is done; returns when it may do the next one."""
        self.seconds.append(self._now() - self._started)
        self.speeds.append((self.num_tokens - self._counted) / self.seconds[-1])
        self._counted = self.num_tokens
        self._has_stepped.release()
        self.wait()

    def wait(self) -> None:
        self._may_step.acquire()
        self._started = self._now()

    def step(self) -> None:
        """Let the system do one step, or come to its end."""
        if self._has_ended:
            return
        self._may_step.release()
        self._has_stepped.acquire()

    def run(self, system: "Callable[[Clock], None]") -> None:
        """Train, in a thread of its own, whenever it is its turn."""
        self.wait()
        try:
            system(self)
        finally:
            self._has_ended = True
            self._has_stepped.release()


def take_turns(
    systems: Mapping[str, Callable[[Clock], None]],
    num_steps: int,
    title: str,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, Clock]:
    """Train all systems, one step of each in turn; tells the speeds on stderr.

    Args:
        systems: each trains for `num_steps` steps, and marks the clock it is given after each.

    Returns:
        The clocks, with the time of every step.

    Raises:
        Exception: what a system raised, once the others are done.
    """
    clocks = {name: Clock(now) for name in systems}
    with ThreadPoolExecutor(len(systems)) as threads:
        running = [threads.submit(clock.run, systems[name]) for name, clock in clocks.items()]
        for step in range(num_steps + 1):  # after the last step they come to their end
            for name, clock in clocks.items():
                clock.step()
                for speed in clock.speeds[step:]:
                    line = f"{title}, step {step + 1}: {name} {speed:.0f} tokens/s"
                    print(line, file=sys.stderr, flush=True)
        for future in running:
            future.result()
    return clocks


def interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = mean
) -> tuple[float, float]:
    """The 95 % bootstrap interval of a statistic of `values`."""
    generator = random.Random(0)
    ordered = sorted(
        statistic(generator.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)
    )
    return ordered[int(0.025 * NUM_RESAMPLES)], ordered[int(0.975 * NUM_RESAMPLES)]
