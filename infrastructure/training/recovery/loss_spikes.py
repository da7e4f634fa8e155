"""Detection of bad losses: NaN, infinite, or far above earlier losses."""

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from infrastructure.core.errors import TrainingDivergedError
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.training.core.state import RecoveryKind

SPIKE_FACTOR = 5.0
NUM_REMEMBERED = 50
NUM_NEEDED = 20
# The least rise of a spike, as a share of the run's highest median. When almost nothing is left to
# learn, one or two wrong tokens are many times the median, and are not a spike.
LEAST_RISE = 0.02
# Items that a record's mean must cover to be judged before there is a median, because the mean of a
# few tokens varies a lot.
NUM_ITEMS_NEEDED = 8


@dataclass
class LossSpikeDetector:
    """A detector of spikes in the sequence of logged losses.

    Attributes:
        factor: a loss above this multiple of the median of the recent losses is a spike, if it also
            exceeds the median by `LEAST_RISE` of `highest`.
        recent: the last finite logged losses.
        highest: the highest median of `recent` so far.
        is_high: the last loss was a spike. Of consecutive spikes, only the first is reported.
        is_signed: True if some losses were below 0, so that comparing with multiples of the median
            cannot detect spikes.
        until_step: up to this step, the loss of each single step is checked, to find a bad batch.
            0: no search.
    """

    factor: float = SPIKE_FACTOR
    recent: list[float] = field(default_factory=list)
    highest: float = 0.0
    is_high: bool = False
    is_signed: bool = False
    until_step: int = 0

    def limit(self, num_items: int = NUM_ITEMS_NEEDED) -> float:
        """Return the loss above which a loss counts as a spike.

        The limit is infinite before the first loss, and if losses may be negative. Until there are
        enough losses for a median, the limit is a multiple of the highest recent loss, or infinite
        if the loss is a mean of too few items.

        Args:
            num_items: number of items over which the loss is averaged.
        """
        if self.is_signed:
            return math.inf
        middle = self._median()
        if middle > 0:
            return max(self.factor * middle, middle + LEAST_RISE * self.highest)
        is_early = 0 < len(self.recent) < NUM_NEEDED and num_items >= NUM_ITEMS_NEEDED
        return self.factor * max(self.recent) if is_early else math.inf

    def _median(self) -> float:
        """Return the median of the recent losses, or 0 if there are too few of them."""
        return statistics.median(self.recent) if len(self.recent) >= NUM_NEEDED else 0.0

    def observe(self, loss: float, num_items: int = NUM_ITEMS_NEEDED) -> bool:
        """Add a finite loss, the mean of `num_items` items, and return whether a spike begins."""
        self.is_signed = self.is_signed or loss < 0
        was_high, self.is_high = self.is_high, loss > self.limit(num_items)
        self.recent = [*self.recent, loss][-NUM_REMEMBERED:]
        self.highest = max(self.highest, self._median())
        return self.is_high and not was_high

    def forget(self) -> None:
        """Forget the previous losses, because the next ones are not comparable with them."""
        self.recent, self.highest = [], 0.0
        self.is_high = self.is_signed = False

    def state_dict(self) -> dict[str, object]:
        values = {"recent": list(self.recent), "highest": self.highest}
        flags = {"is_high": self.is_high, "is_signed": self.is_signed}
        return {**values, **flags, "until_step": self.until_step}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.recent = list(saved["recent"])
        self.highest = saved.get("highest", 0.0)  # absent in older checkpoints
        self.is_high = saved["is_high"]
        self.is_signed = saved.get("is_signed", False)
        self.until_step = saved["until_step"]


@dataclass(frozen=True)
class BadStep:
    """A step with a bad loss, whose update must be undone.

    Attributes:
        step: the step after which the loss was read.
        num_steps: number of steps over which the loss was averaged. `step` is the last of them.
        epoch, example, num_examples: where the batch of `step` begins in the data, and its size.
        rows: names of the rows of that batch. Empty if another batch may have caused the loss.
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
        """True if it is known which batch caused the loss."""
        return bool(self.rows)

    @property
    def numbers(self) -> str:
        """The loss and the gradient norm of the step, as text."""
        of = (
            ""
            if self.num_steps == 1
            else phrase("training.bad_loss_within_steps", count=self.num_steps)
        )
        loss, norm = format_number(self.loss), format_number(self.grad_norm)
        return phrase("training.bad_loss_numbers", loss=loss, norm=norm, extent=of)

    def __str__(self) -> str:
        return f"step {self.step}: {self.numbers}"


class BadLossError(TrainingDivergedError):
    """An error for a bad loss. The loop handles it by a rollback, or ends the run with a
    description.
    """

    def __init__(self, bad: BadStep) -> None:
        super().__init__(str(bad))
        self.bad = bad
