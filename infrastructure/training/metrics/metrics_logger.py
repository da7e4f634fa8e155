"""Logging of a run's metrics to all sinks (files, console, trackers). A failing sink never stops
the run.

The logger does not depend on training code. `observers.run_observers` passes records to it.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from infrastructure.core.best_effort import BestEffort
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonValue
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.metrics_file import plain_record
from infrastructure.training.metrics.sinks import ConsoleSink, Sink

logger = logging.getLogger(__name__)


class MetricsLogger:
    """A logger that passes each metrics record to each sink, in order.

    If a sink raises (disk full, closed stream), its first failure is logged as a warning. The sink
    still gets every later record. At the end, the number of records that it missed is reported.

    Attributes:
        problems: one sentence for each sink that failed, to show at the end of the run.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self.sinks = list(sinks)
        self._best_effort = BestEffort(logger, "training.metrics_sink_failed", tries_again=True)

    def log(self, record: Mapping[str, JsonValue]) -> None:
        """Write one record. Its values may be numbers, text, None, or scalar arrays and tensors.

        Raises:
            ValueError: the record has no `step`, without which the file could not be resumed.
        """
        if "step" not in record:
            raise InputError("training.metrics_record_without_step", keys=", ".join(record))
        plain = plain_record(record)
        for sink in self.sinks:
            self._best_effort.attempt(sink.name, partial(sink.write, plain))

    def expect(self, total_steps: int) -> None:
        """Announce to the sinks that a run of this many steps starts or resumes."""
        for sink in self.sinks:
            if isinstance(sink, ConsoleSink):
                sink.expect(total_steps)

    def truncate_after(self, step: int) -> None:
        """Drop the records after `step`, because the run resumes at this step and repeats the later
        ones.
        """
        for sink in self.sinks:
            self._best_effort.attempt(sink.name, partial(sink.truncate_after, step))

    def close(self) -> None:
        """Close the sinks, and log how many records could not be written."""
        for sink in self.sinks:
            self._best_effort.attempt(sink.name, sink.close)
        for problem in self.problems:
            logger.warning("%s", problem)

    @property
    def problems(self) -> list[str]:
        return [
            phrase(
                "training.metrics_sink_incomplete",
                name=name,
                count=count,
                first_error=self._best_effort.first_error[name],
            )
            for name, count in self._best_effort.num_failures.items()
        ]
