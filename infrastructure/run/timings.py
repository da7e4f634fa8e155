"""The stages of a run, and the duration of each."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infrastructure.run.record_types import StageRecord

# In this order. A resumed run repeats all stages except the first measurement.
STAGES = {
    "model": "build or load the model",
    "data": "read, check and tokenize the data",
    "checks": "run the checks before training",
    "measure": "evaluate the model before training",
    "fit": "measure batch size and steps, forecast, and check memory and disk",
    "train": "train",
    "save": "write the trained model",
    "evaluate": "evaluate the trained model",
    "back up": "wait until the backup destination confirms the last checkpoint",
    "clean up": "stop helper processes and free memory",
}


class Stages:
    """Measures the duration of each stage; repeated stages are added up.

    Args:
        clock: returns seconds that never decrease.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._seconds: dict[str, float] = {}
        self._failed: dict[str, str] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside the context for the stage `name`, also if it fails.

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
        """Return the duration of a stage; None: it was not run."""
        return self._seconds.get(name)

    def total_seconds(self) -> float:
        """Return the duration of all stages so far."""
        return sum(self._seconds.values())

    def records(self) -> list[StageRecord]:
        """Return records for summary.json: name, description, seconds, and the error, if any."""
        return [self._record(name, seconds) for name, seconds in self._seconds.items()]

    def _record(self, name: str, seconds: float) -> StageRecord:
        record: StageRecord = {"name": name, "what": STAGES[name], "seconds": round(seconds, 3)}
        if name in self._failed:
            record["error"] = self._failed[name]
        return record
