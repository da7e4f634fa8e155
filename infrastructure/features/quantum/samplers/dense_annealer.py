"""Temper's sampler for dense problems of up to some ten thousand variables, with numpy only.

With thousands of fully connected variables, library samplers exceed their time limit and find
energies farther from the best known ones (`benchmarks/results/quantum_quality.md`).
"""

import time
from typing import Any, ClassVar

import dimod
import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.features.quantum.samplers.deadline import Clock, Deadline
from infrastructure.features.quantum.samplers.dense_exchange import READS, ExchangeSearch
from infrastructure.features.quantum.samplers.dense_problem import Bits, DenseProblem
from infrastructure.features.quantum.samplers.dense_search import DenseSearch
from infrastructure.features.quantum.samplers.dense_search_base import Search

VARIABLES_SEARCHED = 10_000  # in all reads together, if their number is not given
FEWEST_READS, MOST_READS = 2, 10
SECONDS_PER_TERM = 3e-8  # cost of the model's own energies, computed at the end
MOST_SPARE_SHARE = 0.2


class DenseAnnealer(dimod.Sampler):
    """A `dimod.Sampler` for any binary quadratic model: annealing with a recombined population.

    If the time limit did not cut the search off (see `info["is_cut_off"]`), the answer depends only
    on model, `seed`, `num_reads` and `num_ones`, on any machine. The energies are the model's own,
    in float64.

    Args:
        clock: returns seconds; a benchmark on a busy machine passes the processor time.
    """

    parameters: ClassVar[dict[str, object]] = {
        name: [] for name in ("num_reads", "time_limit", "seed", "num_ones")
    }
    properties: ClassVar[dict[str, object]] = {}

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        *,
        num_reads: int | None = None,
        time_limit: float | None = None,
        seed: int | None = None,
        num_ones: int | None = None,
        **unknown: object,
    ) -> dimod.SampleSet:
        """Search for the assignment with the lowest energy.

        Args:
            num_reads: number of independent searches; their best assignments are recombined. None:
                a default that is smaller for more variables. The search ends earlier if several
                reads reach the same energy.
            time_limit: seconds from the call on, conversion included; None: no limit.
            seed: seed of the random numbers; None: a different one each time.
            num_ones: number of ones (up spins) in every answer. Moves are then swaps, so the model
                needs no penalty for this number. None: any number.

        Returns:
            The distinct best assignments of the reads after recombination, best first.

        Raises:
            ValueError: the model does not fit into memory as a matrix, or an argument is invalid.
        """
        self.remove_unknown_kwargs(**unknown)
        deadline = Deadline(time_limit, self.clock)
        reads = _checked_reads(num_reads, bqm.num_variables, num_ones)
        _refuse_ones(num_ones, bqm.num_variables)
        if not bqm.num_variables:
            return dimod.SampleSet.from_samples_bqm(np.empty((1, 0), np.int8), bqm)
        problem = DenseProblem.of(bqm, num_ones)
        about = (problem, np.random.default_rng(seed), deadline, _spare_seconds(bqm, time_limit))
        search: Search[Any]
        if num_ones is None:
            search = DenseSearch(*about, scale=problem.field_scale())
        else:
            search = ExchangeSearch(*about, num_ones=num_ones)
        search.run(reads)
        sample_set = dimod.SampleSet.from_samples_bqm(
            (_samples(search, bqm), problem.variables), bqm
        )
        sample_set.info.update(_search_info(search))
        return sample_set


def default_reads(num_variables: int, num_ones: int | None = None) -> int:
    """Return the default number of reads for a problem of this size."""
    if num_ones is not None:
        return READS
    return min(MOST_READS, max(FEWEST_READS, VARIABLES_SEARCHED // max(1, num_variables)))


def _samples(search: Search[Any], bqm: dimod.BinaryQuadraticModel) -> Bits:
    """Return the assignments that a search found in the model's vartype, best first."""
    states = search.ranked()
    bits = np.array([state.bits for state in states], np.int8)
    return bits if bqm.vartype is dimod.BINARY else (2 * bits - 1).astype(np.int8)


def _search_info(search: Search[Any]) -> dict[str, object]:
    return {
        "num_reads": len(search.read_energies),
        "num_steps": search.num_steps,
        "read_energies": search.read_energies,
        "is_cut_off": search.is_cut_off,
        "seconds": search.deadline.elapsed_seconds,
    }


def _spare_seconds(bqm: dimod.BinaryQuadraticModel, time_limit: float | None) -> float:
    """Return the seconds to reserve for computing energies, a limited share of the time limit."""
    needed = SECONDS_PER_TERM * bqm.num_interactions
    return 0.0 if time_limit is None else min(needed, MOST_SPARE_SHARE * time_limit)


def _checked_reads(num_reads: int | None, num_variables: int, num_ones: int | None) -> int:
    if num_reads is None:
        return default_reads(num_variables, num_ones)
    if num_reads < 1:
        raise InputError("quantum.num_reads_too_small", num_reads=num_reads)
    return num_reads


def _refuse_ones(num_ones: int | None, num_variables: int) -> None:
    if num_ones is not None and not 0 <= num_ones <= num_variables:
        raise InputError("quantum.num_ones_out_of_range", num_ones=num_ones, count=num_variables)
