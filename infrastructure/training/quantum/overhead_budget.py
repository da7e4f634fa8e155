"""What a quantum step may cost: a share of the time of the steps that its answer is for."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from infrastructure.config.sections.quantum_config import AT_ANY_COST
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_duration

AUTO_PERCENT, FREQUENT_PERCENT = 1.0, 10.0  # without and with a frequency, where no bound is given
NUM_STEPS = 20  # that a step's time is the mean of
# What `auto` takes to choose among n, measured on one core: up to 20 are counted through, more are
# searched (0.5 to 0.8 s for 50, 1.6 s for 200, 1 to 1.7 s for 600, 4.4 s for 2000, 13 s for 5000).
EXACT_VARIABLES, EXACT_SECONDS = 20, 0.1
SEARCH_SECONDS, SECONDS_PER_VARIABLE = 1.0, 0.0025


@dataclass
class OverheadBudget:
    """Takes the time of training steps and of quantum steps, and says what the next may cost.

    Attributes:
        percent: of the training's time; `quantum.max_overhead_percent`.
        never_skips: a step that would cost more is made as small as it can be, never skipped.
        spent_seconds: of all quantum steps of this process.
        forecast_step_seconds: of a training step, as it was measured before the training; None: it
            was not.
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
        """Return the budget of a training. Whoever gives `optimization_frequency` has asked for the
        steps, so a bound that nobody gave must not take them away."""
        if percent != "auto":
            return cls(percent, clock)
        never_skips = frequency is not None
        return cls(FREQUENT_PERCENT if never_skips else AUTO_PERCENT, clock, never_skips)

    def step_begins(self) -> None:
        """A training step begins."""
        self._began, self._spent_before = self.clock(), self.spent_seconds

    def step_has_ended(self) -> None:
        """It has ended; what a quantum step took inside is not counted."""
        seconds = self.clock() - self._began - (self.spent_seconds - self._spent_before)
        self._steps = [*self._steps[1 - NUM_STEPS :], max(0.0, seconds)]

    @property
    def seconds_so_far(self) -> float:
        """Since the present step began, without a quantum step in it."""
        return self.clock() - self._began - (self.spent_seconds - self._spent_before)

    @property
    def step_seconds(self) -> float | None:
        """Of a training step, on average; as in the forecast where none has ended in this process.
        The first one warms up, and counts only as long as there is no other."""
        warm = self._steps[1:] or self._steps
        return sum(warm) / len(warm) if warm else self.forecast_step_seconds

    def allowed_seconds(self, num_steps: int, step_seconds: float) -> float:
        """What a question for `num_steps` steps may cost; infinite where there is no bound."""
        steps = self.allowed_steps(num_steps)
        return steps if math.isinf(steps) else steps * step_seconds

    def allowed_steps(self, num_steps: int) -> float:
        """The same in training steps, whose time need not be known for it."""
        if self.percent >= AT_ANY_COST and num_steps > 0:
            return math.inf
        return self.percent / 100 * num_steps

    def pay(self, seconds: float) -> None:
        """A quantum step took so long."""
        self.spent_seconds += seconds


def solver_seconds(num_variables: int) -> float:
    """About what a sampler takes for so many variables, before any was asked here."""
    if num_variables <= EXACT_VARIABLES:
        return EXACT_SECONDS
    return SEARCH_SECONDS + SECONDS_PER_VARIABLE * num_variables


def _short(seconds: float) -> str:
    """A time that may be a small part of a second, which is not nothing."""
    return f"{1000 * seconds:.2g} ms" if 0 < seconds < 0.1 else format_duration(seconds)


def _rounded_up(percent: float) -> str:
    """A percentage, never less than it is: to two digits, or to whole ones."""
    unit = 10.0 ** min(0, math.floor(math.log10(max(percent, 1e-9))) - 1)
    return f"{math.ceil(round(percent / unit, 6)) * unit:,.12g}"


def over_budget(cost_seconds: float, allowed_seconds: float, percent: float) -> str:
    """Why a question is not asked, with the bound at which it would be."""
    needed = percent * cost_seconds / max(allowed_seconds, 1e-9)
    return phrase(
        "quantum.step_over_time_budget",
        cost=format_duration(cost_seconds),
        percent=percent,
        allowed=_short(allowed_seconds),
        needed=_rounded_up(needed),
    )


def too_few_steps(least_steps: float, num_steps: int, percent: float) -> str:
    """Why a question is not asked, where that is known before anything is measured."""
    return phrase(
        "quantum.step_over_work_budget",
        least_steps=least_steps,
        num_steps=num_steps,
        percent=percent,
        allowed_steps=percent / 100 * num_steps,
        needed=_rounded_up(100 * least_steps / num_steps),
    )
