"""Creation of samplers by name, each with a time limit.

    create_sampler("auto").sample(bqm, time_limit=10, seed=0)

Every sampler except `exact`, which is bounded by its size, takes `time_limit` (seconds of wall
time, a hard bound). Samplers also take `num_reads` and `seed` if these apply. If neither time nor
reads are given, the amount of work follows from the size of the problem.
"""

from collections.abc import Callable

import dimod

from infrastructure.core.errors import InputError
from infrastructure.core.lookup import look_up
from infrastructure.features.quantum.sampler_needs import canonical
from infrastructure.features.quantum.samplers.auto_sampler import AutoSampler
from infrastructure.features.quantum.samplers.dense_annealer import DenseAnnealer
from infrastructure.features.quantum.samplers.exact_sampler import ExactSampler
from infrastructure.features.quantum.samplers.process_sampler import ProcessSampler

AUTO = "auto"


Make = Callable[..., dimod.Sampler]


def _beside(name: str, *known: str) -> Make:
    """Return a function that creates the sampler in a separate process, with these parameters."""

    def make(**options: object) -> dimod.Sampler:
        return ProcessSampler(name, options, known)

    return make


READS, SEED = "num_reads", "seed"

SAMPLERS: dict[str, Make] = {
    AUTO: lambda: AutoSampler(create_sampler),  # by size, density, structure and time
    "exact": ExactSampler,  # up to 20 variables
    "dense_annealer": DenseAnnealer,
    # dwave-samplers
    "simulated_annealing": _beside("simulated_annealing", READS, SEED),
    "tabu": _beside("tabu", READS, SEED),
    "path_integral": _beside("path_integral", READS, SEED),
    "steepest_descent": _beside("steepest_descent", READS, SEED),
    "tree_decomposition": _beside("tree_decomposition", READS),
    # circuits, up to 20 variables: numpy, qiskit-aer, machines of Azure Quantum
    "qaoa": _beside("qaoa", READS, SEED),
    "aer_qaoa": _beside("aer_qaoa", READS, SEED),
    "azure_quantum": _beside("azure_quantum", READS),
    # D-Wave's machines
    "leap_hybrid": _beside("leap_hybrid"),
    "qpu": _beside("qpu", READS),
}


def create_sampler(name: str, **options: object) -> dimod.Sampler:
    """Create a sampler by name (hyphens are underscores), or a custom `module:Class`.

    A custom sampler is a class with a method `sample`. It runs in a separate process, like all
    samplers that keep no time limit by themselves.

    Args:
        options: keyword arguments that create the sampler, such as `num_sweeps` of
            simulated_annealing or `target` of azure_quantum.

    Raises:
        ValueError: the sampler is unknown, or does not support an option.
    """
    if ":" in name:
        return ProcessSampler(name, options)
    make = look_up("sampler", canonical(name), SAMPLERS)
    try:
        return make(**options)
    except TypeError as error:
        raise InputError("quantum.sampler_not_created", name=name, error=error) from None


def close_sampler(sampler: dimod.Sampler) -> None:
    """End the processes that a sampler from `create_sampler` keeps for its next problem."""
    for one in getattr(sampler, "samplers", {}).values():
        close_sampler(one)
    if isinstance(sampler, ProcessSampler):
        sampler.close()
