"""Creation of samplers by name, each with a time limit.

    create_sampler("auto").sample(bqm, time_limit=10, seed=0)

Every sampler except `exact`, which is bounded by its size, takes `time_limit` (seconds of wall
time, a hard bound). Samplers also take `num_reads` and `seed` if these apply. If neither time nor
reads are given, the amount of work follows from the size of the problem.
"""

from collections.abc import Callable

import dimod

from infrastructure.core.lookup import look_up
from infrastructure.features.quantum.sampler_needs import canonical
from infrastructure.features.quantum.samplers.auto_sampler import AutoSampler
from infrastructure.features.quantum.samplers.dense_annealer import DenseAnnealer
from infrastructure.features.quantum.samplers.exact_sampler import ExactSampler
from infrastructure.features.quantum.samplers.process_sampler import ProcessSampler

SAMPLERS: dict[str, Callable[[], dimod.Sampler]] = {
    "auto": lambda: AutoSampler(create_sampler),  # by size and density
    "exact": ExactSampler,  # up to 20 variables
    "dense_annealer": DenseAnnealer,
    "simulated_annealing": lambda: ProcessSampler("simulated_annealing"),
    "azure_quantum": lambda: ProcessSampler("azure_quantum", ("num_reads",)),  # up to 20 variables
}


def create_sampler(name: str) -> dimod.Sampler:
    """Create the sampler with a certain name (hyphens are underscores), or a custom `module:Class`.

    A custom sampler is a class with a method `sample`, such as `dwave.samplers:TabuSampler`. It
    runs in a separate process, as does every sampler that does not observe a time limit itself.

    Raises:
        ValueError: the sampler is unknown.
    """
    if ":" in name:
        return ProcessSampler(name)
    return look_up("sampler", canonical(name), SAMPLERS)()


def close_sampler(sampler: dimod.Sampler) -> None:
    """End the processes that a sampler from `create_sampler` keeps for its next problem."""
    for one in getattr(sampler, "samplers", {}).values():
        close_sampler(one)
    if isinstance(sampler, ProcessSampler):
        sampler.close()
