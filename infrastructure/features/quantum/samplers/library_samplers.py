"""The samplers of dwave-samplers, with a time limit: they run one read at a time.

The library has no deadline: simulated annealing checks the clock only between reads, and tabu's
timeout is for a single read. The annealers' default temperatures are found by a slow loop over the
model in Python and suit sparse models, so they are set here. If a single read takes too long, it
can only be stopped by ending its process (`process_sampler`).
"""

import time
from abc import abstractmethod
from typing import ClassVar

import dimod
import numpy as np

from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.features.quantum.samplers.bqm_arrays import vectors_of
from infrastructure.features.quantum.samplers.deadline import Clock, Deadline

DEFAULT_READS = 10
# An anneal of few variables is fast and may miss the optimum, so small models get more reads: this
# many variables in all reads together.
VARIABLES_ANNEALED, MOST_DEFAULT_READS = 1000, 100
# Anneals become longer read by read, up to a maximum, so the first answer comes soon.
FIRST_SWEEPS, MOST_SWEEPS = 100, 1000
KEPT_ROWS = 20
LARGEST_SEED = (1 << 31) - 1
TABU_MILLISECONDS_PER_VARIABLE = 2
HOT_FIELDS, COLD_FIELDS = 2.0, 0.05  # temperatures, as multiples of the field that a spin feels


class LibrarySampler(dimod.Sampler):
    """A sampler that does one read after another and keeps the best assignments."""

    parameters: ClassVar[dict[str, object]] = {"num_reads": [], "seed": [], "time_limit": []}
    properties: ClassVar[dict[str, object]] = {}
    ends_by_clock: ClassVar[bool] = False  # True: a seed does not repeat a read
    clock: Clock = staticmethod(time.monotonic)

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
        wanted = num_reads or self.default_reads(bqm.num_variables)
        sets: list[dimod.SampleSet] = []
        longest, done = 0.0, 0
        while done < wanted and (not done or deadline.seconds_left > self.caution(done) * longest):
            began = deadline.elapsed_seconds
            read_seed = int(random.integers(LARGEST_SEED))
            sets.append(self.read(bqm, done, read_seed, deadline.seconds_left))
            longest = max(longest, deadline.elapsed_seconds - began)
            sets, done = [_best_of(sets)], done + 1
        sample_set = sets[0]
        sample_set.info.clear()
        sample_set.info.update(
            {"num_reads": done, "is_cut_off": done < wanted or self.ends_by_clock}
        )
        return sample_set

    def default_reads(self, num_variables: int) -> int:
        """Return the default number of reads for a problem of this size."""
        return DEFAULT_READS

    def caution(self, done: int) -> float:
        """Return how long the next read may take, as a multiple of the longest one so far."""
        return 1.2

    @abstractmethod
    def read(
        self, bqm: dimod.BinaryQuadraticModel, number: int, seed: int, seconds_left: float
    ) -> dimod.SampleSet:
        """Do read `number` (from 0), and return its samples."""


class SimulatedAnnealing(LibrarySampler):
    """Simulated annealing of `dwave.samplers`, with temperatures that fit the model.

    Args:
        num_sweeps: sweeps of the longest anneals; the first has 100, and each doubles them.
    """

    library_class: ClassVar[str] = "SimulatedAnnealingSampler"

    def __init__(self, num_sweeps: int = MOST_SWEEPS) -> None:
        library = require(
            "dwave.samplers", phrase("quantum.the_sampler", name="simulated_annealing")
        )
        self.num_sweeps = num_sweeps
        self.library = getattr(library, self.library_class)()

    def default_reads(self, num_variables: int) -> int:
        enough = VARIABLES_ANNEALED // max(1, num_variables)
        return min(MOST_DEFAULT_READS, max(DEFAULT_READS, enough))

    def caution(self, done: int) -> float:
        return 1.2 * self.sweeps(done) / self.sweeps(done - 1)

    def sweeps(self, number: int) -> int:
        return min(self.num_sweeps, FIRST_SWEEPS << min(number, 20))

    def read(
        self, bqm: dimod.BinaryQuadraticModel, number: int, seed: int, seconds_left: float
    ) -> dimod.SampleSet:
        return self.library.sample(
            bqm,
            num_reads=1,
            seed=seed,
            num_sweeps=self.sweeps(number),
            beta_range=beta_range_of(bqm),
        )


class PathIntegral(SimulatedAnnealing):
    """Simulated quantum annealing by path integrals, with a decreasing transverse field."""

    library_class: ClassVar[str] = "PathIntegralAnnealingSampler"


class Tabu(LibrarySampler):
    """Multistart tabu search (MST2) of `dwave.samplers`; each read gets a share of the time."""

    ends_by_clock = True

    def __init__(self) -> None:
        self.library = require(
            "dwave.samplers", phrase("quantum.the_sampler", name="tabu")
        ).TabuSampler()

    def read(
        self, bqm: dimod.BinaryQuadraticModel, number: int, seed: int, seconds_left: float
    ) -> dimod.SampleSet:
        usual = TABU_MILLISECONDS_PER_VARIABLE * bqm.num_variables
        timeout = max(1, int(min(1000 * seconds_left / 3, max(20, usual))))
        return self.library.sample(bqm, num_reads=1, seed=seed, timeout=timeout)


class SteepestDescent(LibrarySampler):
    """Steepest descent of `dwave.samplers` from random assignments.

    A read is a hundred descents, or one for more than 1000 variables.
    """

    def __init__(self) -> None:
        self.library = require(
            "dwave.samplers", phrase("quantum.the_sampler", name="steepest_descent")
        ).SteepestDescentSampler()

    def read(
        self, bqm: dimod.BinaryQuadraticModel, number: int, seed: int, seconds_left: float
    ) -> dimod.SampleSet:
        starts = 100 if bqm.num_variables <= 1000 else 1
        return self.library.sample(bqm, num_reads=starts, seed=seed)


class TreeDecomposition(dimod.Sampler):
    """Tree decomposition of `dwave.samplers`: the exact minimum of a model of small treewidth."""

    parameters: ClassVar[dict[str, object]] = {"num_reads": []}
    properties: ClassVar[dict[str, object]] = {}

    def __init__(self) -> None:
        self.library = require(
            "dwave.samplers", phrase("quantum.the_sampler", name="tree_decomposition")
        ).TreeDecompositionSolver()

    def sample(
        self, bqm: dimod.BinaryQuadraticModel, *, num_reads: int = 1, **unknown: object
    ) -> dimod.SampleSet:
        """Return the `num_reads` assignments with the lowest energies.

        Raises:
            ValueError: the treewidth is too large.
        """
        self.remove_unknown_kwargs(**unknown)
        sample_set = self.library.sample(bqm, num_reads=num_reads)
        # The library sums energies in its own way; they must be those of the model.
        return dimod.SampleSet.from_samples_bqm(sample_set, bqm, info={"is_cut_off": False})


def beta_range_of(bqm: dimod.BinaryQuadraticModel) -> tuple[float, float]:
    """Return the inverse temperatures at the start and the end of an anneal over spins.

    The typical effect on a spin is the root of the sum of its squared couplings. In a dense model
    this is far less than the sum, with which the library's default begins. The coefficients are
    read as arrays, not as dicts.
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


def _best_of(sets: list[dimod.SampleSet]) -> dimod.SampleSet:
    """Return the best rows of all sample sets, best first, and at most `KEPT_ROWS`."""
    joined = dimod.concatenate(sets) if len(sets) > 1 else sets[0]
    return joined.truncate(KEPT_ROWS)
