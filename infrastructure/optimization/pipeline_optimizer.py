"""A search for the settings with which a run is fastest on this machine, by measurement.

Settings are tried one by one, each together with the best values of the previous ones. A value is
kept only if the whole training, with one-time costs such as compiling, is clearly faster with it
and fits into memory. `optimize_pipeline` measures by itself how fast a data pipeline is read.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.optimization.device_errors import is_out_of_memory

# Smaller differences are noise of this machine.
CLEARLY_FASTER = 1.03
PREFETCH_FACTORS = (1, 2, 4, 8)  # to try for a data pipeline
NUM_BATCHES, BATCH_SIZE = 32, 32  # that such a trial reads


def _not_given(_settings: Mapping[str, object]) -> "Measured":
    raise InputError("optimization.pipeline_measure_not_given")


@dataclass(frozen=True)
class Measured:
    """The speed and memory of a run, and the one-time cost before this speed, as of compiling."""

    tokens_per_second: float
    peak_bytes: int
    setup_seconds: float = 0.0

    def seconds_for(self, num_tokens: float) -> float:
        """Return the time of a run of `num_tokens` tokens, in seconds."""
        return self.setup_seconds + num_tokens / self.tokens_per_second


@dataclass(frozen=True)
class Tried:
    """The result of trying one value. `refusal` is the reason why the value cannot be used, or "".

    Attributes:
        best: the best measurement so far, with which this one is compared.
        num_tokens: the number of tokens in the whole run.
    """

    key: str
    value: Any
    measured: Measured | None
    refusal: str = ""
    taken: bool = False
    best: Measured | None = None
    num_tokens: float = math.inf


@dataclass
class PipelineOptimizer:
    """A search that tries values of settings and keeps those that make the run faster.

    Attributes:
        measure: measures a run with some changed settings; raises ValueError if that is impossible.
        budget_bytes: the memory that may be used.
        num_tokens: the number of tokens in the whole run.
        report: receives each result when it is available.
    """

    measure: Callable[[Mapping[str, object]], Measured] = _not_given
    budget_bytes: float = math.inf
    num_tokens: float = math.inf
    report: Callable[[Tried], None] = do_nothing
    settings: dict[str, Any] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)

    def optimize_pipeline(self, pipeline: Any) -> dict[str, object]:
        """Measure which settings read a `DataPipeline` fastest, use them, and return them by key.

        The data is prepared first if necessary. The order of the examples does not change.
        """
        data = getattr(pipeline, "data", pipeline)
        before = data.config.prefetch_factor

        def measure(settings: Mapping[str, Any]) -> Measured:
            data.config.prefetch_factor = settings.get("data.prefetch_factor", before)
            return Measured(_examples_per_second(data), 0)

        own = PipelineOptimizer(measure, num_tokens=data.num_examples, report=self.report)
        tried = [count for count in PREFETCH_FACTORS if count != before]
        try:
            chosen = own.run({"data.prefetch_factor": tried})
        finally:
            data.config.prefetch_factor = before
        self.tried += own.tried
        self.settings |= chosen
        data.config.prefetch_factor = chosen.get("data.prefetch_factor", before)
        return chosen

    def run(self, alternatives: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return setting → new value, for the changes that make the run faster.

        Args:
            alternatives: setting → the values to try in this order, besides the current one.
        """
        best = self._try("", None, {})
        for key, values in alternatives.items():
            for value in values:
                candidate = self._try(key, value, {**self.settings, key: value}, best)
                if candidate is not None:
                    best = candidate
                    self.settings[key] = value
        return dict(self.settings)

    def _try(
        self, key: str, value: object, settings: Mapping[str, object], best: Measured | None = None
    ) -> Measured | None:
        """Measure a setting's value; return the measurement if it is better than `best`."""
        refusal, measured, pays = "", None, False
        try:
            measured = self.measure(settings)
        except ValueError as error:
            refusal = str(error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            refusal = phrase("optimization.out_of_memory")
        if measured is not None and measured.peak_bytes > self.budget_bytes:
            refusal = phrase("optimization.exceeds_available_memory")
        elif measured is not None:
            then = measured.seconds_for(self.num_tokens)
            pays = best is None or best.seconds_for(self.num_tokens) > CLEARLY_FASTER * then
        self.tried.append(Tried(key, value, measured, refusal, pays, best, self.num_tokens))
        self.report(self.tried[-1])
        return measured if pays else None


def _examples_per_second(data: Any) -> float:
    """Return how many examples per second are read from the first epoch."""
    num_examples, started = 0, time.perf_counter()
    with closing(data.train_batches(0, 0, BATCH_SIZE)) as batches:
        for batch in islice(batches, NUM_BATCHES):
            num_examples += len(batch)
    return num_examples / max(time.perf_counter() - started, 1e-9)
