"""A chain of samplers as one sampler: if one fails, the next one is queried.

After a failure, the answer does not depend on the problem alone. A caller that must be able to
repeat the answer has to store it. A run stores it in its checkpoints.
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
    """A `dimod.Sampler` that queries a chain of samplers in order until one answers.

    Each keyword argument is passed to the samplers that support it. A `time_limit` (seconds) is for
    the whole chain: each sampler may use an equal share of the time left, so if one hangs, the
    others still have theirs.

    Args:
        samplers: samplers by name, the preferred one first.

    Attributes:
        answered_by: name of the sampler that answered the last problem; "": none did.
        failures: a sentence on each sampler that failed before one answered.

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
        """The keyword arguments that at least one of the samplers supports."""
        known: dict[str, Any] = {}
        for sampler in reversed(self.samplers.values()):
            known |= sampler.parameters
        return known

    @property
    def properties(self) -> dict[str, object]:
        """The properties of each sampler, by its name."""
        return {name: sampler.properties for name, sampler in self.samplers.items()}

    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> dimod.SampleSet:
        """Solve one problem with the first sampler that answers.

        Raises:
            ValueError: none of the samplers supports a keyword argument.
            SamplerError: all samplers failed; the message gives the reason of each.
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
            except Exception as error:  # after any error the next one is queried
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
        if not len(sample_set):  # a remote solver answers, or fails, only here
            raise SamplerError("quantum.empty_answer")
        return sample_set
