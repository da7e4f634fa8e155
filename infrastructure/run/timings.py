"""The stages of a run, and the duration of each."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infrastructure.core.messages import phrase
from infrastructure.run.record_types import StageRecord

# In this order. A resumed run repeats all stages except the first measurement.
STAGES = {
    "model": "run.stage_model",
    "data": "run.stage_data",
    "checks": "run.stage_checks",
    "measure": "run.stage_first_measurement",
    "fit": "run.stage_fitting",
    "train": "run.stage_training",
    "save": "run.stage_saving",
    "evaluate": "run.stage_evaluation",
    "back up": "run.stage_backup",
    "clean up": "run.stage_cleanup",
}


class Stages:
    """The measured duration of each stage of a run. Durations of a repeated stage are added up.

    Args:
        clock: returns the time in seconds, and never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._seconds: dict[str, float] = {}
        self._failed: dict[str, str] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to the stage `name`, even if the block fails.

        Raises:
            KeyError: if there is no such stage.
        """
        STAGES[name]
        began = self.clock()
        try:
            yield
        except BaseException as error:
            self._failed[name] = type(error).__name__
            raise
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self.clock() - began

    def seconds(self, name: str) -> float | None:
        """Return the duration of a stage in seconds, or None if it did not run."""
        return self._seconds.get(name)

    def total_seconds(self) -> float:
        """Return the total duration of all stages so far, in seconds."""
        return sum(self._seconds.values())

    def records(self) -> list[StageRecord]:
        """Return records for summary.json: name, description, seconds, and the error, if any."""
        return [self._record(name, seconds) for name, seconds in self._seconds.items()]

    def _record(self, name: str, seconds: float) -> StageRecord:
        record: StageRecord = {
            "name": name,
            "what": phrase(STAGES[name]),
            "seconds": round(seconds, 3),
        }
        if name in self._failed:
            record["error"] = self._failed[name]
        return record
