"""Whether a loss is bad: not a number, or far above those before it; and which step it was of."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from infrastructure.core.errors import TrainingDivergedError
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.training.core.state import RecoveryKind

NUM_REMEMBERED = 50
NUM_NEEDED = 20
# Of the highest median of a run: what a loss must rise by, at least. Where nearly nothing is left
# to learn, a token or two that were missed are many times the median, and no spike.
LEAST_RISE = 0.02


@dataclass
class LossSpikeDetector:
    """Judges the logged losses, in their order.

    Attributes:
        factor: a loss above this multiple of the median of the last ones is a spike, if it has
            risen by `LEAST_RISE` of `highest`.
        recent: the last finite logged losses.
        highest: median of `recent` so far.
        is_high: the last one was a spike; a row of them is told once.
        until_step: up to there the loss of each single step is read, to find a bad one; 0: no.
    """

    factor: float
    recent: list[float] = field(default_factory=list)
    highest: float = 0.0
    is_high: bool = False
    until_step: int = 0

    @property
    def limit(self) -> float:
        """The loss above which there is a spike; infinite while too few are known, and where
        losses may be negative, so that multiples of them mean nothing."""
        middle = self._median()
        least = middle + LEAST_RISE * self.highest
        return max(self.factor * middle, least) if middle > 0 else float("inf")

    def _median(self) -> float:
        """Of the last losses; 0 while too few are known."""
        return statistics.median(self.recent) if len(self.recent) >= NUM_NEEDED else 0.0

    def observe(self, loss: float) -> bool:
        """Take in a finite loss; whether a spike begins with it."""
        was_high, self.is_high = self.is_high, loss > self.limit
        self.recent = [*self.recent, loss][-NUM_REMEMBERED:]
        self.highest = max(self.highest, self._median())
        return self.is_high and not was_high

    def forget(self) -> None:
        """What comes now has nothing to do with the losses before."""
        self.recent, self.highest, self.is_high = [], 0.0, False

    def state_dict(self) -> dict[str, object]:
        values = {"recent": list(self.recent), "highest": self.highest}
        return {**values, "is_high": self.is_high, "until_step": self.until_step}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.recent = list(saved["recent"])
        self.highest = saved.get("highest", 0.0)  # of a run of before: what is seen from now on
        self.is_high = saved["is_high"]
        self.until_step = saved["until_step"]


@dataclass(frozen=True)
class BadStep:
    """A loss that must not stay in the weights.

    Attributes:
        step: the step after which it was read.
        num_steps: steps that it may be of, `step` being the last of them.
        epoch, example, num_examples: where the batch of `step` begins in the data; its size.
        rows: names of that batch's rows; empty where it is not known to be the one.
    """

    kind: RecoveryKind
    step: int
    loss: float
    grad_norm: float
    num_steps: int
    epoch: int = 0
    example: int = 0
    num_examples: int = 0
    rows: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether the batch is known that the loss came with."""
        return bool(self.rows)

    @property
    def numbers(self) -> str:
        """What is wrong with the step, without its number."""
        of = "" if self.num_steps == 1 else f", one of the last {self.num_steps} steps"
        loss, norm = format_number(self.loss), format_number(self.grad_norm)
        return f"loss {loss}, gradient norm {norm}{of}"

    def __str__(self) -> str:
        return f"step {self.step}: {self.numbers}"


class BadLossError(TrainingDivergedError):
    """Raised where a bad loss is read; the loop goes back, or gives up with all that it knows."""

    def __init__(self, bad: BadStep) -> None:
        super().__init__(str(bad))
        self.bad = bad
