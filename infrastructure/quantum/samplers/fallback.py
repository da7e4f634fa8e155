"""Several samplers as one: asked in order, the next one where one fails.

An answer that came after a failure is no function of the question; who keeps it, as a training does
with its checkpoints, repeats the answer itself.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import dimod

from infrastructure.core.errors import InputError, SamplerError
from infrastructure.core.messages import phrase
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
        answered_by: name of the sampler that answered the newest question; "": none did.
        failures: how those failed that were asked it in vain.

    Raises:
        ValueError: there is no sampler.
    """

    def __init__(self, samplers: Mapping[str, dimod.Sampler]) -> None:
        if not samplers:
            raise InputError("quantum.empty_sampler_chain")
        self.samplers = dict(samplers)
        self.answered_by = ""
        self.failures: list[str] = []

    @property
    def parameters(self) -> dict[str, object]:
        """The keywords that any of the samplers knows."""
        known: dict[str, Any] = {}
        for sampler in reversed(self.samplers.values()):
            known |= sampler.parameters
        return known

    @property
    def properties(self) -> dict[str, object]:
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
            raise InputError(
                "quantum.parameter_unknown_to_samplers",
                samplers=", ".join(self.samplers),
                parameters=", ".join(unknown),
            )
        began, limit = time.monotonic(), parameters.pop(TIME_LIMIT, None)
        self.answered_by, self.failures = "", []
        for number, (name, sampler) in enumerate(self.samplers.items()):
            if limit is not None:
                left = max(0.0, limit - (time.monotonic() - began))
                parameters[TIME_LIMIT] = left / (len(self.samplers) - number)
            try:
                sample_set = self._query(sampler, bqm, parameters)
            except Exception as error:  # whatever a solver raises, the next one is asked
                self.failures.append(f"{name}: {redact(repr(error))}")
                log.warning(phrase("quantum.trying_next_sampler", failure=self.failures[-1]))
                continue
            self.answered_by = name
            return sample_set
        raise SamplerError("quantum.no_sampler_answered", failures="; ".join(self.failures))

    def _query(
        self,
        sampler: dimod.Sampler,
        bqm: dimod.BinaryQuadraticModel,
        parameters: Mapping[str, object],
    ) -> dimod.SampleSet:
        known = {key: value for key, value in parameters.items() if key in sampler.parameters}
        sample_set = sampler.sample(bqm, **known)
        if not len(sample_set):  # a remote solver answers, or fails, only now
            raise SamplerError("quantum.empty_answer")
        return sample_set
