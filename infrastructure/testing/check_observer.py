"""An observer that repeats checks at intervals during a run, to notice errors in a long run."""

import logging
import time
from collections.abc import Callable

from infrastructure.core.messages import phrase
from infrastructure.testing.parameter_checks import check_learning, check_steps
from infrastructure.testing.preflight import UNIT, run_checks
from infrastructure.testing.results import CheckResult, sentence
from infrastructure.testing.subject import Subject
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer

# The part of the full tier that needs no second model next to the one that trains.
REAL_STEPS = (check_steps, check_learning)

log = logging.getLogger(__name__)


class CheckObserver(Observer):
    """An observer that runs checks between training steps, at intervals.

    All changes by the checks are undone, so they do not affect the training. A failed check is
    logged and recorded, and the training continues.

    Args:
        trainer: the training to check.
        interval_seconds: the time between the end of one round and the beginning of the next.
        take: called with the step and the results after each round.
        clock: returns seconds from any starting point.
    """

    def __init__(
        self,
        trainer: EnhancedTrainer,
        interval_seconds: float,
        take: Callable[[int, list[CheckResult]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trainer, self._take = trainer, take
        self._interval_seconds, self._clock = interval_seconds, clock
        self._subject: Subject | None = None
        self._due_at = clock() + interval_seconds

    def train_start(self, state: TrainingState) -> None:
        """Choose the examples now, because later another thread also reads the data."""
        self._subject = Subject(self._trainer)
        self._subject.sample  # noqa: B018
        self._due_at = self._clock() + self._interval_seconds

    def step_end(self, state: TrainingState) -> None:
        if self._subject is None or self._clock() < self._due_at:
            return
        unit = run_checks(UNIT, self._subject)
        results = [*unit, *run_checks(REAL_STEPS, self._subject, "integration")]
        if failed := [result for result in results if result.status == "fail"]:
            log.warning(
                phrase("testing.checks_failed_at_step", step=state.step, failed=sentence(failed))
            )
        self._take(state.step, results)
        self._due_at = self._clock() + self._interval_seconds
