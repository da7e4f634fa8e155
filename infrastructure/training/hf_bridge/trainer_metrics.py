"""The numbers of a step from what a Trainer logs, and the time that steps take."""

import time
from collections.abc import Callable, Mapping

from infrastructure.core.json_text import JsonValue

NOT_NUMBERS_OF_A_STEP = ("epoch", "step", "total_flos")


class StepClock:
    """Seconds of steps and of the wait for their data, without evaluating and saving.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds = 0.0  # since the last `read`
        self.waited_seconds = 0.0  # in all
        self._began: float | None = None
        self._ended: float | None = None

    def begin(self) -> None:
        """A step begins: its data is there."""
        self._began = self.clock()
        if self._ended is not None:
            self.waited_seconds += self._began - self._ended
            self.seconds += self._began - self._ended

    def end(self, *, goes_on_at_once: bool) -> None:
        """A step has ended.

        Args:
            goes_on_at_once: nothing but the next step comes now, so that time is a wait for data.
        """
        now = self.clock()
        if self._began is not None:
            self.seconds += now - self._began
        self._ended = now if goes_on_at_once else None

    def read(self) -> float:
        """The seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def numbers_of(logs: Mapping[str, JsonValue]) -> dict[str, float]:
    """What a Trainer logged of its steps, as numbers."""
    return {
        name: float(value)
        for name, value in logs.items()
        if isinstance(value, int | float) and name not in NOT_NUMBERS_OF_A_STEP
    }


def evaluation_of(metrics: Mapping[str, JsonValue]) -> dict[str, float]:
    """The numbers of an evaluation that are about the model, not about how fast it went."""
    speed = ("_runtime", "_per_second")
    numbers = numbers_of(metrics)
    return {name: value for name, value in numbers.items() if not name.endswith(speed)}


def over_all_processes(logs: Mapping[str, float], seconds_before: float) -> dict[str, float]:
    """What a Trainer logs of its speed at the end, over the processes before this one too.

    Args:
        seconds_before: that they trained.
    """
    seconds = logs["train_runtime"]
    speeds = {n: logs[n] for n in logs if n.startswith("train_") and n.endswith("_per_second")}
    whole = seconds + seconds_before
    share = seconds / whole if whole else 1.0
    return {"train_runtime": whole, **{name: speed * share for name, speed in speeds.items()}}
