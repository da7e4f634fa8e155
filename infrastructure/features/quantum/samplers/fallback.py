"""A chain of samplers: if one fails, the next one is queried.

After a failure, the answer does not depend on the problem alone. A caller that must be able to
repeat the answer has to store it. A run stores it in its checkpoints.
"""

import logging
import time
from collections.abc import Mapping

import dimod

from infrastructure.core.errors import SamplerError
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact

log = logging.getLogger(__name__)


class FallbackChain:
    """Samplers that are queried in order until one answers.

    Args:
        samplers: samplers by name, the preferred one first; at least one.

    Attributes:
        answered_by: name of the sampler that answered the last problem; "": none did.
        failures: a sentence on each sampler that failed before one answered.
    """

    def __init__(self, samplers: Mapping[str, dimod.Sampler]) -> None:
        self.samplers = dict(samplers)
        self.answered_by = ""
        self.failures: list[str] = []

    def sample(
        self, bqm: dimod.BinaryQuadraticModel, time_limit: float, **parameters: object
    ) -> dimod.SampleSet:
        """Solve one problem. Each sampler gets the keywords that it knows.

        Args:
            time_limit: seconds for the whole chain. Each sampler may use an equal share of the time
                left, so that a sampler that hangs does not use up the others' time.

        Raises:
            SamplerError: all samplers failed; the text gives the reason of each.
        """
        began = time.monotonic()
        self.answered_by, self.failures = "", []
        for number, (name, sampler) in enumerate(self.samplers.items()):
            left = max(0.0, time_limit - (time.monotonic() - began))
            given = {**parameters, "time_limit": left / (len(self.samplers) - number)}
            try:
                known = {key: value for key, value in given.items() if key in sampler.parameters}
                sample_set = sampler.sample(bqm, **known)
                if not len(sample_set):  # a remote solver answers, or fails, only here
                    raise SamplerError("quantum.empty_answer")
            except Exception as error:  # after any error the next one is queried
                self.failures.append(f"{name}: {redact(repr(error))}")
                log.warning(phrase("quantum.trying_next_sampler", failure=self.failures[-1]))
                continue
            self.answered_by = name
            return sample_set
        raise SamplerError("quantum.no_sampler_answered", failures="; ".join(self.failures))
