"""The time budget of quantum steps, as a share of the training time."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from infrastructure.core.messages import phrase
from infrastructure.features.quantum.config import AT_ANY_COST
from infrastructure.monitoring.drawing.formatting import format_duration

AUTO_PERCENT, FREQUENT_PERCENT = 1.0, 10.0  # without and with a frequency, if no bound is given
NUM_STEPS = 20  # number of steps over which a step's time is averaged
# Time of `auto` for n variables, measured on one core: up to 20 are enumerated, more are searched
# (0.5 to 0.8 s for 50, 1.6 s for 200, 1 to 1.7 s for 600, 4.4 s for 2000, 13 s for 5000).
EXACT_VARIABLES, EXACT_SECONDS = 20, 0.1
SEARCH_SECONDS, SECONDS_PER_VARIABLE = 1.0, 0.0025


@dataclass
class OverheadBudget:
    """The times of training steps and quantum steps, and the time limit of the next quantum step.

    Attributes:
        percent: share of the training time; `quantum.max_overhead_percent`.
        never_skips: a step over the limit is made as small as possible instead of being skipped.
        spent_seconds: time of all quantum steps in this process.
        forecast_step_seconds: time of a training step, as measured before the training; None: not
            measured.
    """

    percent: float
    clock: Callable[[], float] = time.monotonic
    never_skips: bool = False
    spent_seconds: float = 0.0
    forecast_step_seconds: float | None = None
    _steps: list[float] = field(default_factory=list)
    _began: float = 0.0
    _spent_before: float = 0.0

    @classmethod
    def of(
        cls,
        percent: float | Literal["auto"],
        frequency: int | None,
        clock: Callable[[], float],
    ) -> "OverheadBudget":
        """Create the budget of a run.

        If `optimization_frequency` is set and `percent` is `auto`, the user has requested the
        steps, so they are never skipped.
        """
        if percent != "auto":
            return cls(percent, clock)
        never_skips = frequency is not None
        return cls(FREQUENT_PERCENT if never_skips else AUTO_PERCENT, clock, never_skips)

    def step_begins(self) -> None:
        """Record the start of a training step."""
        self._began, self._spent_before = self.clock(), self.spent_seconds

    def step_has_ended(self) -> None:
        """Record the end of a training step, without the time of a quantum step inside it."""
        seconds = self.clock() - self._began - (self.spent_seconds - self._spent_before)
        self._steps = [*self._steps[1 - NUM_STEPS :], max(0.0, seconds)]

    @property
    def seconds_so_far(self) -> float:
        """The seconds since the current training step began, without a quantum step inside it."""
        return self.clock() - self._began - (self.spent_seconds - self._spent_before)

    @property
    def step_seconds(self) -> float | None:
        """The average seconds of a training step; None if there is no measurement.

        Before the first step of this process has ended, this is the forecast. The first step is a
        warm-up, whose time is used only until another step has ended.
        """
        warm = self._steps[1:] or self._steps
        return sum(warm) / len(warm) if warm else self.forecast_step_seconds

    def allowed_seconds(self, num_steps: int, step_seconds: float) -> float:
        """Return the seconds that a quantum step may take.

        The decision is used for `num_steps` training steps. Without a limit, the result is
        infinite.
        """
        steps = self.allowed_steps(num_steps)
        return steps if math.isinf(steps) else steps * step_seconds

    def allowed_steps(self, num_steps: int) -> float:
        """Return the time limit of a quantum step in units of a training step.

        The decision is used for `num_steps` training steps. The time of a step need not be known.
        """
        if self.percent >= AT_ANY_COST and num_steps > 0:
            return math.inf
        return self.percent / 100 * num_steps

    def pay(self, seconds: float) -> None:
        """Add the time of a quantum step to the spent time."""
        self.spent_seconds += seconds


def solver_seconds(num_variables: int) -> float:
    """Estimate a sampler's seconds for this number of variables, before any sampler has run."""
    if num_variables <= EXACT_VARIABLES:
        return EXACT_SECONDS
    return SEARCH_SECONDS + SECONDS_PER_VARIABLE * num_variables


def _short(seconds: float) -> str:
    """Format a duration, in milliseconds if it is a small part of a second."""
    return f"{1000 * seconds:.2g} ms" if 0 < seconds < 0.1 else format_duration(seconds)


def _rounded_up(percent: float) -> str:
    """Round a percentage up to two digits, or to a whole number."""
    unit = 10.0 ** min(0, math.floor(math.log10(max(percent, 1e-9))) - 1)
    return f"{math.ceil(round(percent / unit, 6)) * unit:,.12g}"


def over_budget(cost_seconds: float, allowed_seconds: float, percent: float) -> str:
    """Explain why a quantum step is skipped, and which limit would let it run."""
    needed = percent * cost_seconds / max(allowed_seconds, 1e-9)
    return phrase(
        "quantum.step_over_time_budget",
        cost=format_duration(cost_seconds),
        percent=percent,
        allowed=_short(allowed_seconds),
        needed=_rounded_up(needed),
    )


def too_few_steps(least_steps: float, num_steps: int, percent: float) -> str:
    """Explain why a quantum step that certainly exceeds the limit is skipped without a
    measurement.
    """
    return phrase(
        "quantum.step_over_work_budget",
        least_steps=least_steps,
        num_steps=num_steps,
        percent=percent,
        allowed_steps=percent / 100 * num_steps,
        needed=_rounded_up(100 * least_steps / num_steps),
    )
