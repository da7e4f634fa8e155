"""The learning rate range test, which finds the highest usable learning rate.

Source: Smith 2017, "Cyclical Learning Rates", arXiv 1506.01186, section 3.3. The rate rises
exponentially from step to step. The smoothed loss first falls, then is flat, and finally explodes.
The suggested rate is the one at which the loss falls most steeply, and at most a tenth of the rate
at which the loss explodes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from infrastructure.core.messages import phrase

LOWEST, HIGHEST = 1e-7, 1.0
NUM_STEPS = 100
SMOOTHING = 0.9
EXPLODED = 2.0
SAFETY = 10.0
# The first steps are not informative, and the last ones before the explosion already turn.
SKIPPED = 5


@dataclass(frozen=True)
class RangeTest:
    """The result of a range test: learning rates, smoothed losses, and the suggested rate.

    Attributes:
        explodes_at: the rate at which the loss exploded, or None if it did not.
        suggested: the suggested rate, or None if the loss never fell.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    explodes_at: float | None
    suggested: float | None

    def lines(self) -> list[str]:
        """Return the result as lines for the user."""
        if self.suggested is None:
            return [phrase("tune.loss_fell_at_no_rate")]
        end = (
            phrase("tune.loss_explodes_at_rate", rate=self.explodes_at)
            if self.explodes_at
            else "no explosion"
        )
        return [phrase("tune.learning_rate_suggested", suggested=self.suggested, limit=end)]


def range_test(
    loss_at: Callable[[float], float],
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    num_steps: int = NUM_STEPS,
) -> RangeTest:
    """Train with rising learning rates until the loss explodes, and suggest a rate.

    Args:
        loss_at: a function that runs one optimizer step at a given rate, and returns the loss
            before the step.
    """
    rates: list[float] = []
    losses: list[float] = []
    average, explodes_at = 0.0, None
    for step in range(num_steps):
        rate = lowest * (highest / lowest) ** (step / max(1, num_steps - 1))
        loss = loss_at(rate)
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        smoothed = average / (1 - SMOOTHING ** (step + 1))  # corrects for the few values so far
        if not math.isfinite(loss) or (losses and smoothed > EXPLODED * min(losses)):
            explodes_at = rate
            break
        rates.append(rate)
        losses.append(smoothed)
    return RangeTest(
        tuple(rates), tuple(losses), explodes_at, _suggested(rates, losses, explodes_at)
    )


def _suggested(rates: list[float], losses: list[float], explodes_at: float | None) -> float | None:
    slopes = [(losses[i + 1] - losses[i - 1], rates[i]) for i in range(SKIPPED, len(losses) - 1)]
    steepest, rate = min(slopes, default=(0.0, 0.0))
    if steepest >= 0:
        return None
    return min(rate, explodes_at / SAFETY) if explodes_at else rate
