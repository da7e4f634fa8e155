"""Simulated annealing of dwave-samplers, run one read at a time until work or time is used up.

The library checks the clock only between reads. Its default temperatures suit sparse models, and it
computes them slowly, in Python. So this module sets the number of reads and the temperatures. A
single read that takes too long can be stopped only by ending its process (`process_sampler`).
"""

import time
from typing import ClassVar

import dimod
import numpy as np

from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.features.quantum.samplers.bqm_arrays import vectors_of
from infrastructure.features.quantum.samplers.deadline import Clock, Deadline

# An anneal of few variables is fast and may miss the optimum, so small models get more reads: this
# many variables in all reads together.
FEWEST_READS, VARIABLES_ANNEALED, MOST_READS = 10, 1000, 100
# Anneals become longer read by read, up to a maximum, so the first answer comes soon.
FIRST_SWEEPS, MOST_SWEEPS = 100, 1000
KEPT_ROWS = 20
LARGEST_SEED = (1 << 31) - 1
HOT_FIELDS, COLD_FIELDS = 2.0, 0.05  # temperatures, as multiples of the field that a spin feels


class SimulatedAnnealing(dimod.Sampler):
    """Simulated annealing of `dwave.samplers`, with temperatures that fit the model."""

    parameters: ClassVar[dict[str, object]] = {"num_reads": [], "seed": [], "time_limit": []}
    properties: ClassVar[dict[str, object]] = {}
    clock: Clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        library = require(
            "dwave.samplers", phrase("quantum.the_sampler", name="simulated_annealing")
        )
        self.library = library.SimulatedAnnealingSampler()

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        *,
        num_reads: int | None = None,
        seed: int | None = None,
        time_limit: float | None = None,
        **unknown: object,
    ) -> dimod.SampleSet:
        """Return the best assignments of `num_reads` reads, or of as many as the time allows.

        The first read always begins. Another one begins only if it would end in time, estimated
        from the longest read so far.
        """
        self.remove_unknown_kwargs(**unknown)
        deadline = Deadline(time_limit, self.clock)
        random = np.random.default_rng(seed)
        enough = VARIABLES_ANNEALED // max(1, bqm.num_variables)
        wanted = num_reads or min(MOST_READS, max(FEWEST_READS, enough))
        beta_range = beta_range_of(bqm)
        best: list[dimod.SampleSet] = []
        longest, done = 0.0, 0
        while done < wanted and (not done or deadline.seconds_left > _caution(done) * longest):
            began = deadline.elapsed_seconds
            read = self.library.sample(
                bqm,
                num_reads=1,
                seed=int(random.integers(LARGEST_SEED)),
                num_sweeps=_sweeps(done),
                beta_range=beta_range,
            )
            longest = max(longest, deadline.elapsed_seconds - began)
            best = [dimod.concatenate([*best, read]).truncate(KEPT_ROWS)]
            done += 1
        sample_set = best[0]
        sample_set.info.clear()
        sample_set.info.update({"num_reads": done, "is_cut_off": done < wanted})
        return sample_set


def _sweeps(number: int) -> int:
    return min(MOST_SWEEPS, FIRST_SWEEPS << min(number, 20))


def _caution(done: int) -> float:
    """Return the factor by which the next read may take longer than the longest so far."""
    return 1.2 * _sweeps(done) / _sweeps(done - 1)


def beta_range_of(bqm: dimod.BinaryQuadraticModel) -> tuple[float, float]:
    """Return inverse temperatures from hot to cold for an anneal over spins.

    A spin feels about the root of the sum of its squared couplings. In a dense model this is far
    less than the sum, with which the library's default begins. The model is read as vectors, not as
    dicts.
    """
    n = bqm.num_variables
    fields, rows, columns, biases, _ = vectors_of(bqm)
    couplings = (1.0 if bqm.vartype is dimod.SPIN else 0.25) * biases
    if bqm.vartype is dimod.BINARY:
        sums = np.bincount(rows, couplings, n) + np.bincount(columns, couplings, n)
        fields = 0.5 * fields + sums
    squares = np.square(couplings)
    felt = np.square(fields) + np.bincount(rows, squares, n) + np.bincount(columns, squares, n)
    felt = np.sqrt(felt[felt > 0])
    if not len(felt):
        return 1.0, 10.0
    return 1 / (HOT_FIELDS * float(felt.max())), 1 / (COLD_FIELDS * float(felt.min()))
