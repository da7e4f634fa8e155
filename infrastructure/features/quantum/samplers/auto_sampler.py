"""The sampler `auto`, which chooses a sampler by the problem and reports its choice."""

import time
from collections.abc import Callable
from typing import ClassVar

import dimod

from infrastructure.core.messages import phrase
from infrastructure.features.quantum.sampler_needs import MOST_COUNTED
from infrastructure.features.quantum.samplers.dense_problem import matrix_fits

EXACT, DENSE, ANNEALING = "exact", "dense_annealer", "simulated_annealing"
DENSE_VARIABLES = 8000  # up to this size a matrix is used at any density
LEAST_DENSITY = 0.01


class AutoSampler(dimod.Sampler):
    """A sampler that passes each problem to the most suitable sampler.

    The `info` of the answer contains the name (`sampler`) and the reason for the choice (`reason`).

    Args:
        make: creates the sampler with a given name.
    """

    parameters: ClassVar[dict[str, object]] = {
        name: [] for name in ("num_reads", "time_limit", "seed", "num_ones")
    }
    properties: ClassVar[dict[str, object]] = {}

    def __init__(self, make: Callable[[str], dimod.Sampler]) -> None:
        self.make = make
        self.samplers: dict[str, dimod.Sampler] = {}

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        *,
        time_limit: float | None = None,
        num_ones: int | None = None,
        **parameters: object,
    ) -> dimod.SampleSet:
        """Choose a sampler and query it, without parameters that it does not support."""
        began = time.monotonic()
        name, reason = choose(bqm, num_ones)
        if name not in self.samplers:
            self.samplers[name] = self.make(name)
        sampler = self.samplers[name]
        left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - began))
        given = {**parameters, "time_limit": left, "num_ones": num_ones}
        known = {
            key: value
            for key, value in given.items()
            if value is not None and key in sampler.parameters
        }
        sample_set = sampler.sample(bqm, **known)
        sample_set.info.update({"sampler": name, "reason": reason})
        return sample_set


def choose(bqm: dimod.BinaryQuadraticModel, num_ones: int | None) -> tuple[str, str]:
    """Return the name of the sampler for a problem, and the reason for the choice."""
    n, m = bqm.num_variables, bqm.num_interactions
    density = 2 * m / max(1, n * (n - 1))
    shape = phrase("quantum.problem_density", count=n, percent=100 * density)
    if n <= MOST_COUNTED:
        return EXACT, phrase("quantum.auto_enumerates_all", count=n)
    if num_ones is not None:
        return DENSE, phrase("quantum.auto_keeps_number_of_ones", problem=shape)
    fits = matrix_fits(n)
    if fits and (n <= DENSE_VARIABLES or density >= LEAST_DENSITY):
        return DENSE, phrase("quantum.auto_matrix_fits", problem=shape)
    why = "sparse" if fits else phrase("quantum.auto_too_large_for_matrix")
    return ANNEALING, f"{why} ({shape})"
