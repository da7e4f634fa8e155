"""The search for the fastest micro-batch size that fits: `training.batch_size: auto`.

Sizes are doubled from 1. The memory of each size is first predicted from the smaller ones, and a
size is tried only if it should fit, because on a CPU a process that takes too much memory is
killed. The function that runs the steps is passed in.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.core.hardware import gib
from infrastructure.core.messages import phrase
from infrastructure.optimization.device_errors import is_out_of_memory
from infrastructure.optimization.memory_prediction import MemoryLine, MemoryPoint, fit_line

LARGEST = 256
# Sizes this close to the fastest are as good: the smallest of them leaves the most memory.
AS_FAST = 0.98
WORTH_A_LOOK = 0.8
STILL_FASTER = 1.02
# Smaller differences are noise of this machine: no reason to change the current size.
CLEARLY_FASTER = 1.03
SLOWER_IN_A_ROW = 3
FIRST_TRIES = 2
ROUNDS = 4
SECONDS = 60.0  # after which no larger size is tried


@dataclass(frozen=True)
class Trial:
    """The result for one micro-batch size: peak memory with the longest rows, speed with typical
    rows.
    """

    size: int
    peak_bytes: int
    tokens_per_second: float


@dataclass(frozen=True)
class BatchChoice:
    """The chosen micro-batch size, and why the search ended before the largest size, or ""."""

    size: int
    trials: tuple[Trial, ...]
    reason: str

    @property
    def peak_bytes(self) -> int:
        """The peak memory of the chosen size, with the longest rows."""
        return next(trial.peak_bytes for trial in self.trials if trial.size == self.size)

    def lines(self) -> list[str]:
        """Return a line for each size that was tried."""
        return [
            phrase(
                "optimization.batch_size_trial",
                mark="→" if trial.size == self.size else " ",
                size=trial.size,
                tokens_per_second=trial.tokens_per_second,
                peak=gib(trial.peak_bytes),
            )
            for trial in self.trials
        ]


class DoesNotFitError(InputError):
    """An error for a run that does not fit into memory even with one example at a time."""


@dataclass
class BatchSizeSearch:
    """A search for the fastest micro-batch size that fits into memory.

    Attributes:
        peak_of: returns the peak memory of a step with micro-batches of a given size, made of the
            longest rows. It raises the device's own error if memory runs out.
        speed_of: returns the tokens per second of optimizer steps with micro-batches of a given
            size.
        budget_bytes: the memory that may be used.
        idle_bytes: the memory in use between two steps, with gradients and optimizer.
        free_memory: called after memory ran out.
        way_out: the advice for the user if not even one example fits.
    """

    peak_of: Callable[[int], int]
    speed_of: Callable[[int], float]
    budget_bytes: int
    idle_bytes: int
    free_memory: Callable[[], None] = do_nothing
    way_out: str = ""

    def run(self, largest: int = LARGEST, beside: int | None = None) -> BatchChoice:
        """Try the sizes 1, 2, 4, … up to `largest`, and return the choice.

        Args:
            beside: a size that is always measured if it fits, for comparison with the others.

        Raises:
            DoesNotFitError: if one example takes more than the budget.
        """
        self._peaks: dict[int, int] = {}
        self._speeds: dict[int, float] = {}
        started = time.monotonic()
        size, reason = 1, ""
        while not reason and size <= largest:
            reason = self._why_not(size)
            if not reason:
                self._speeds[size] = max(self.speed_of(size) for _ in range(FIRST_TRIES))
                reason = self._why_no_more(time.monotonic() - started)
                size *= 2
        if beside and beside not in self._speeds and not self._why_not(beside):
            self._speeds[beside] = max(self.speed_of(beside) for _ in range(FIRST_TRIES))
        if not self._speeds:
            raise DoesNotFitError(
                "optimization.single_example_does_not_fit", reason=reason, way_out=self.way_out
            )
        chosen = self._fastest(started, beside)
        trials = (Trial(s, self._peaks[s], speed) for s, speed in self._speeds.items())
        return BatchChoice(chosen, tuple(trials), reason)

    def _why_not(self, size: int) -> str:
        """Measure micro-batches of `size`; return why they cannot be used, or "" if they can."""
        predicted = self._line().peak_bytes(size) if self._peaks else self.idle_bytes
        if predicted > self.budget_bytes:
            about = {"size": size, "needed": gib(predicted), "budget": gib(self.budget_bytes)}
            return phrase("optimization.batch_size_would_take", **about)
        try:
            peak = self.peak_of(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            peak = None
        if peak is None:
            self.free_memory()
            return phrase("optimization.batch_size_out_of_memory", size=size)
        if peak > self.budget_bytes:
            about = {"size": size, "needed": gib(peak), "budget": gib(self.budget_bytes)}
            return phrase("optimization.batch_size_takes", **about)
        self._peaks[size] = peak
        return ""

    def _line(self) -> MemoryLine:
        newest = sorted(self._peaks.items())[-2:]
        return fit_line([MemoryPoint(*point) for point in newest], self.idle_bytes)

    def _why_no_more(self, seconds: float) -> str:
        best = max(self._speeds.values())
        recent = list(self._speeds.values())[-SLOWER_IN_A_ROW:]
        before = list(self._speeds.values())[:-SLOWER_IN_A_ROW]
        if before and max(recent) < STILL_FASTER * max(before):
            return phrase("optimization.larger_not_faster")
        is_over = bool(best) and seconds > SECONDS
        return phrase("optimization.measured_long_enough", seconds=seconds) if is_over else ""

    def _fastest(self, started: float, beside: int | None) -> int:
        """Return the fastest size, after measuring the best sizes again in turns.

        Measuring in turns keeps other load on the machine from deciding.
        """
        best = max(self._speeds.values())
        close = [
            size
            for size, speed in self._speeds.items()
            if speed >= WORTH_A_LOOK * best or size == beside
        ]
        for _ in range(ROUNDS if len(close) > 1 else 0):
            if time.monotonic() - started > 2 * SECONDS:
                break
            for size in close:
                self._speeds[size] = max(self._speeds[size], self.speed_of(size))
        best = max(self._speeds.values())
        if beside in self._speeds and best < CLEARLY_FASTER * self._speeds[beside]:
            return beside
        return min(size for size in close if self._speeds[size] >= AS_FAST * best)
