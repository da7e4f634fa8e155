"""Samplers by name, each of which keeps a time limit.

    create_sampler("auto").sample(bqm, time_limit=10, seed=0)

Every one takes `time_limit` (seconds of wall time, a hard bound) and, where it makes sense,
`num_reads` and `seed`. Where neither time nor reads are given, its work follows from the size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dimod

from infrastructure.core.lookup import look_up
from infrastructure.quantum.samplers.auto_sampler import AutoSampler
from infrastructure.quantum.samplers.dense_annealer import DenseAnnealer
from infrastructure.quantum.samplers.exact_sampler import MOST_VARIABLES, ExactSampler
from infrastructure.quantum.samplers.process_sampler import ProcessSampler

AUTO = "auto"


@dataclass(frozen=True)
class SamplerKind:
    """A name that can be asked for.

    Attributes:
        make: with the options that it takes.
        about: what it is, in a line.
        max_variables: more are refused; None: no fixed bound.
    """

    make: Callable[..., dimod.Sampler]
    about: str
    max_variables: int | None = None


def _beside(
    name: str, known: tuple[str, ...], about: str, most: int | None = None
) -> tuple[str, SamplerKind]:
    """A sampler that runs in a process of its own."""

    def make(**options: Any) -> dimod.Sampler:
        return ProcessSampler(name, options, known)

    return name, SamplerKind(make, about, most)


READS, SEED = "num_reads", "seed"

SAMPLERS: dict[str, SamplerKind] = {
    AUTO: SamplerKind(lambda: AutoSampler(create_sampler), "by size, density, structure and time"),
    "exact": SamplerKind(ExactSampler, "counts through all assignments", MOST_VARIABLES),
    "dense_annealer": SamplerKind(DenseAnnealer, "anneal and recombine over a dense matrix"),
    **dict(
        [
            _beside("simulated_annealing", (READS, SEED), "dwave-samplers' simulated annealing"),
            _beside("tabu", (READS, SEED), "dwave-samplers' multistart tabu search"),
            _beside("path_integral", (READS, SEED), "simulated quantum annealing"),
            _beside("steepest_descent", (READS, SEED), "the next valley, from many places"),
            _beside("tree_decomposition", (READS,), "exact where the treewidth is small"),
            _beside("qaoa", (READS, SEED), "QAOA, simulated by numpy", MOST_VARIABLES),
            _beside("aer_qaoa", (READS, SEED), "QAOA, simulated by qiskit-aer", MOST_VARIABLES),
            _beside("azure_quantum", (READS,), "QAOA on an Azure Quantum target", MOST_VARIABLES),
            _beside("leap_hybrid", (), "D-Wave Leap's hybrid solver"),
            _beside("qpu", (READS,), "a D-Wave quantum annealer, embedded"),
        ]
    ),
}


def create_sampler(name: str, **options: Any) -> dimod.Sampler:
    """The sampler of a name (hyphens are underscores), or of one's own `module:Class`.

    A sampler of one's own is a class with a method `sample`; it runs in a process of its own, as
    all do that keep no time limit by themselves.

    Args:
        options: what the sampler is made with, such as `num_sweeps` of simulated_annealing or
            `target` of azure_quantum.

    Raises:
        ValueError: there is no such sampler, or it takes no such option.
    """
    if ":" in name:
        return ProcessSampler(name, options, known=())
    kind = look_up("sampler", name.replace("-", "_"), SAMPLERS)
    try:
        return kind.make(**options)
    except TypeError as error:
        raise ValueError(f"the sampler {name} cannot be made: {error}") from None


def close_sampler(sampler: dimod.Sampler) -> None:
    """End the processes that a sampler of `create_sampler` keeps for its next question."""
    for one in getattr(sampler, "asked", {}).values():
        close_sampler(one)
    if isinstance(sampler, ProcessSampler):
        sampler.close()
