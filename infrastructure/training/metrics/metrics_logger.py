"""The numbers of a run, to every sink; a sink that fails never stops the training.

Knows nothing of the training: `observers.run_observers` hands it the records.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from infrastructure.monitoring.drawing.metrics_file import plain_record
from infrastructure.training.metrics.sinks import Sink

logger = logging.getLogger(__name__)


class MetricsLogger:
    """Gives each record to each sink, in order.

    A sink that raises (disk full, closed stream) is warned about once, is offered every later
    record all the same, and what it missed is told at the end.

    Attributes:
        problems: one sentence for each sink that failed, for the end of the run.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self.sinks = list(sinks)
        self._num_failures: Counter[str] = Counter()
        self._first_error: dict[str, str] = {}

    def log(self, record: Mapping[str, Any]) -> None:
        """Write one record; its values may be numbers, text, None, array or tensor scalars.

        Raises:
            ValueError: the record has no `step`; without it nothing could be resumed.
        """
        if "step" not in record:
            raise ValueError(f"a metrics record needs a step; this has {', '.join(record)}")
        plain = plain_record(record)
        for sink in self.sinks:
            self._attempt(sink, lambda sink=sink: sink.write(plain))  # type: ignore[misc]

    def truncate_after(self, step: int) -> None:
        """Drop the records of later steps: the run was resumed there and does them again."""
        for sink in self.sinks:
            self._attempt(sink, lambda sink=sink: sink.truncate_after(step))  # type: ignore[misc]

    def close(self) -> None:
        """Close the sinks and tell, through logging, what was not written."""
        for sink in self.sinks:
            self._attempt(sink, sink.close)
        for problem in self.problems:
            logger.warning("%s", problem)

    @property
    def problems(self) -> list[str]:
        return [
            f"metrics sink {name!r} failed {count} times and is not complete;"
            f" the first error was {self._first_error[name]}"
            for name, count in self._num_failures.items()
        ]

    def _attempt(self, sink: Sink, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever a sink raises, the training goes on
            self._num_failures[sink.name] += 1
            if sink.name not in self._first_error:
                self._first_error[sink.name] = f"{type(error).__name__}: {error}"
                logger.warning("metrics sink %r failed, others go on: %r", sink.name, error)
