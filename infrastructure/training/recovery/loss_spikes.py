"""Whether a loss is bad: not a number, or far above those before it; and which step it was of."""

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from infrastructure.core.errors import TrainingDivergedError
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.training.core.state import RecoveryKind

NUM_REMEMBERED = 50
NUM_NEEDED = 20
# Of the highest median of a run: what a loss must rise by, at least. Where nearly nothing is left
# to learn, a token or two that were missed are many times the median, and no spike.
LEAST_RISE = 0.02
# Items of one record whose mean is judged before there is a median: that of a few tokens jumps.
NUM_ITEMS_NEEDED = 8


@dataclass
class LossSpikeDetector:
    """Judges the logged losses, in their order.

    Attributes:
        factor: a loss above this multiple of the median of the last ones is a spike, if it has
            risen by `LEAST_RISE` of `highest`.
        recent: the last finite logged losses.
        highest: median of `recent` so far.
        is_high: the last one was a spike; a row of them is told once.
        is_signed: some losses were below 0, so that multiples of them mean nothing.
        until_step: up to there the loss of each single step is read, to find a bad one; 0: no.
    """

    factor: float
    recent: list[float] = field(default_factory=list)
    highest: float = 0.0
    is_high: bool = False
    is_signed: bool = False
    until_step: int = 0

    def limit(self, num_items: int = NUM_ITEMS_NEEDED) -> float:
        """The loss above which there is a spike; infinite while nothing is known, and where losses
        may be negative.

        Before there is a median, what counts is the highest loss; the first is that of the weights
        before training.

        Args:
            num_items: that the loss is the mean of.
        """
        if self.is_signed:
            return math.inf
        middle = self._median()
        if middle > 0:
            return max(self.factor * middle, middle + LEAST_RISE * self.highest)
        is_early = 0 < len(self.recent) < NUM_NEEDED and num_items >= NUM_ITEMS_NEEDED
        return self.factor * max(self.recent) if is_early else math.inf

    def _median(self) -> float:
        """Of the last losses; 0 while too few are known."""
        return statistics.median(self.recent) if len(self.recent) >= NUM_NEEDED else 0.0

    def observe(self, loss: float, num_items: int = NUM_ITEMS_NEEDED) -> bool:
        """Take in a finite loss, the mean of `num_items`; whether a spike begins with it."""
        self.is_signed = self.is_signed or loss < 0
        was_high, self.is_high = self.is_high, loss > self.limit(num_items)
        self.recent = [*self.recent, loss][-NUM_REMEMBERED:]
        self.highest = max(self.highest, self._median())
        return self.is_high and not was_high

    def forget(self) -> None:
        """What comes now has nothing to do with the losses before."""
        self.recent, self.highest = [], 0.0
        self.is_high = self.is_signed = False

    def state_dict(self) -> dict[str, object]:
        values = {"recent": list(self.recent), "highest": self.highest}
        flags = {"is_high": self.is_high, "is_signed": self.is_signed}
        return {**values, **flags, "until_step": self.until_step}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.recent = list(saved["recent"])
        self.highest = saved.get("highest", 0.0)  # of a run of before: what is seen from now on
        self.is_high = saved["is_high"]
        self.is_signed = saved.get("is_signed", False)
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
        of = (
            ""
            if self.num_steps == 1
            else phrase("training.bad_loss_within_steps", count=self.num_steps)
        )
        loss, norm = format_number(self.loss), format_number(self.grad_norm)
        return f"loss {loss}, gradient norm {norm}{of}"

    def __str__(self) -> str:
        return f"step {self.step}: {self.numbers}"


class BadLossError(TrainingDivergedError):
    """Raised where a bad loss is read; the loop goes back, or gives up with all that it knows."""

    def __init__(self, bad: BadStep) -> None:
        super().__init__(str(bad))
        self.bad = bad
