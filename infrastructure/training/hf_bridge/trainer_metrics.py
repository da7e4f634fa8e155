"""Conversion of a Trainer's logs to metrics, and a clock for its steps."""

import time
from collections.abc import Callable, Mapping

from infrastructure.core.json_text import JsonValue

NOT_NUMBERS_OF_A_STEP = ("epoch", "step", "total_flos")


class StepClock:
    """A clock that measures the time of steps and data loading, but not of evaluating and saving.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds = 0.0  # since the last `read`
        self.waited_seconds = 0.0  # in total
        self._began: float | None = None
        self._ended: float | None = None

    def begin(self) -> None:
        """Record the start of a step, after its batch was loaded."""
        self._began = self.clock()
        if self._ended is not None:
            self.waited_seconds += self._began - self._ended
            self.seconds += self._began - self._ended

    def end(self, *, goes_on_at_once: bool) -> None:
        """Record the end of a step.

        Args:
            goes_on_at_once: the next step follows immediately, so the time until it starts counts
                as data loading.
        """
        now = self.clock()
        if self._began is not None:
            self.seconds += now - self._began
        self._ended = now if goes_on_at_once else None

    def read(self) -> float:
        """Return the seconds of the steps since the last call of `read`."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def numbers_of(logs: Mapping[str, JsonValue]) -> dict[str, float]:
    """Return all numeric entries of a Trainer's log except epoch, step and FLOPs."""
    return {
        name: float(value)
        for name, value in logs.items()
        if isinstance(value, int | float) and name not in NOT_NUMBERS_OF_A_STEP
    }


def evaluation_of(metrics: Mapping[str, JsonValue]) -> dict[str, float]:
    """Return the quality metrics of an evaluation, without its runtime and speed."""
    speed = ("_runtime", "_per_second")
    numbers = numbers_of(metrics)
    return {name: value for name, value in numbers.items() if not name.endswith(speed)}


def over_all_processes(logs: Mapping[str, float], seconds_before: float) -> dict[str, float]:
    """Correct the runtime and speeds in a Trainer's final log to include the run's earlier
    processes.

    Args:
        seconds_before: training time of the run's earlier processes.
    """
    seconds = logs["train_runtime"]
    speeds = {n: logs[n] for n in logs if n.startswith("train_") and n.endswith("_per_second")}
    whole = seconds + seconds_before
    share = seconds / whole if whole else 1.0
    speeds = {name: round(speed * share, 3) for name, speed in speeds.items()}
    return {"train_runtime": round(whole, 4), **speeds}
