"""Several samplers as one: asked in order, the next one where one fails.

Which one answered each question is remembered, so that whoever does the same questions again, after
a resume or a way back, asks the same one first instead of waiting for a solver that had failed.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import dimod

from infrastructure.core.errors import SamplerError
from infrastructure.core.redact import redact

TIME_LIMIT = "time_limit"

log = logging.getLogger(__name__)


class FallbackSampler(dimod.Sampler):
    """A `dimod.Sampler` over a chain of them.

    A keyword of a question goes to those samplers that know it. A `time_limit` (seconds) is for all
    together: each one that is asked may use an equal share of what is left, so that one which hangs
    leaves the others theirs.

    Args:
        samplers: by name, the preferred one first.

    Attributes:
        answered_by: name of the sampler that answered, question by question.
        num_asked: questions so far; below the length of `answered_by` while questions are repeated.
        failures: how those failed that were asked the newest question in vain.

    Raises:
        ValueError: there is no sampler.
    """

    def __init__(self, samplers: Mapping[str, dimod.Sampler]) -> None:
        if not samplers:
            raise ValueError("a chain of samplers needs at least one")
        self.samplers = dict(samplers)
        self.answered_by: list[str] = []
        self.num_asked = 0
        self.failures: list[str] = []

    @property
    def parameters(self) -> dict[str, Any]:
        """The keywords that any of the samplers knows."""
        known: dict[str, Any] = {}
        for sampler in reversed(self.samplers.values()):
            known |= sampler.parameters
        return known

    @property
    def properties(self) -> dict[str, Any]:
        """Those of each sampler, by its name."""
        return {name: sampler.properties for name, sampler in self.samplers.items()}

    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> dimod.SampleSet:
        """Answer one question.

        Raises:
            ValueError: none of the samplers knows a keyword.
            SamplerError: all of them failed; the text says how each did.
        """
        unknown = sorted(parameters.keys() - self.parameters.keys() - {TIME_LIMIT})
        if unknown:
            raise ValueError(f"no sampler of {', '.join(self.samplers)} knows {', '.join(unknown)}")
        began, limit = time.monotonic(), parameters.pop(TIME_LIMIT, None)
        self.failures = []
        order = self._order()
        for number, name in enumerate(order):
            if limit is not None:
                left = max(0.0, limit - (time.monotonic() - began))
                parameters[TIME_LIMIT] = left / (len(order) - number)
            try:
                found = self._ask(self.samplers[name], bqm, parameters)
            except Exception as error:  # whatever a solver raises, the next one is asked
                self.failures.append(f"{name}: {redact(repr(error))}")
                log.warning("a sampler failed, and the next one is asked: %s", self.failures[-1])
                continue
            self.answered_by[self.num_asked :] = [name, *self.answered_by[self.num_asked + 1 :]]
            self.num_asked += 1
            return found
        raise SamplerError(f"no sampler answered: {'; '.join(self.failures)}")

    def repeat_from(self, num_asked: int) -> None:
        """The next question is number `num_asked` (from 0) again; recorded choices are repeated.

        Raises:
            ValueError: so many questions were never answered.
        """
        if not 0 <= num_asked <= len(self.answered_by):
            raise ValueError(f"{len(self.answered_by)} questions were answered, not {num_asked}")
        self.num_asked = num_asked

    def state_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"answered_by": list(self.answered_by), "num_asked": self.num_asked}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; a sampler that is gone since then is not asked."""
        self.answered_by = list(saved["answered_by"])
        self.repeat_from(saved["num_asked"])

    def _order(self) -> list[str]:
        """The one that answered this question before, then all others."""
        recorded = self.answered_by[self.num_asked : self.num_asked + 1]
        names = [*(name for name in recorded if name in self.samplers), *self.samplers]
        return list(dict.fromkeys(names))

    def _ask(
        self, sampler: dimod.Sampler, bqm: dimod.BinaryQuadraticModel, parameters: dict[str, Any]
    ) -> dimod.SampleSet:
        known = {key: value for key, value in parameters.items() if key in sampler.parameters}
        found = sampler.sample(bqm, **known)
        found.resolve()  # a remote solver answers, or fails, only now
        if not len(found):
            raise SamplerError("an empty answer")
        return found
