"""The samplers of dwave-samplers, read by read until the work or the time is done.

They know no deadline: simulated annealing looks at a clock between reads only, and tabu's timeout
is one read's. The default temperatures of the annealers are found by walking the model in Python
and fit sparse models, so they are set here. Where a single read overruns, only the process that
this runs in can be ended (`process_sampler`).
"""

import time
from abc import abstractmethod
from typing import ClassVar

import dimod
import numpy as np

from infrastructure.core.optional import require
from infrastructure.quantum.samplers.bqm_arrays import vectors_of
from infrastructure.quantum.samplers.deadline import Clock, Deadline

DEFAULT_READS = 10
# An anneal of few variables is over at once and may miss: so many variables in all reads together.
VARIABLES_ANNEALED, MOST_DEFAULT_READS = 1000, 100
# Anneals become longer read by read, so that there is a first answer soon.
FIRST_SWEEPS, MOST_SWEEPS = 100, 1000
KEPT_ROWS = 20
LARGEST_SEED = (1 << 31) - 1
TABU_MILLISECONDS_PER_VARIABLE = 2
HOT_FIELDS, COLD_FIELDS = 2.0, 0.05  # temperatures, as multiples of what moves a spin


class LibrarySampler(dimod.Sampler):
    """A sampler that does one read after the other and keeps the best assignments."""

    parameters: ClassVar[dict[str, object]] = {"num_reads": [], "seed": [], "time_limit": []}
    properties: ClassVar[dict[str, object]] = {}
    ends_by_clock: ClassVar[bool] = False  # a read does; so a seed does not repeat it
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
        """The best assignments of `num_reads` reads, or of those that the time was enough for.

        A read is begun only where one that takes as long as the longest would end in time; the
        first one always is.
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
        """Reads where none are asked for."""
        return DEFAULT_READS

    def caution(self, done: int) -> float:
        """How many times longer than the longest so far the next read may take."""
        return 1.2

    @abstractmethod
    def read(
        self, bqm: dimod.BinaryQuadraticModel, number: int, seed: int, seconds_left: float
    ) -> dimod.SampleSet:
        """One read; `number` counts from 0."""


class SimulatedAnnealing(LibrarySampler):
    """Simulated annealing of `dwave.samplers`, with temperatures that fit the model.

    Args:
        num_sweeps: of the longest anneals; they begin with 100 and double.
    """

    library_class: ClassVar[str] = "SimulatedAnnealingSampler"

    def __init__(self, num_sweeps: int = MOST_SWEEPS) -> None:
        library = require("dwave.samplers", "the sampler simulated_annealing")
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
    """Simulated quantum annealing: a transverse field fades over worldlines of spins."""

    library_class: ClassVar[str] = "PathIntegralAnnealingSampler"


class Tabu(LibrarySampler):
    """Multistart tabu search (MST2) of `dwave.samplers`; a read has a share of the time."""

    ends_by_clock = True

    def __init__(self) -> None:
        self.library = require("dwave.samplers", "the sampler tabu").TabuSampler()

    def read(
        self, bqm: dimod.BinaryQuadraticModel, number: int, seed: int, seconds_left: float
    ) -> dimod.SampleSet:
        usual = TABU_MILLISECONDS_PER_VARIABLE * bqm.num_variables
        timeout = max(1, int(min(1000 * seconds_left / 3, max(20, usual))))
        return self.library.sample(bqm, num_reads=1, seed=seed, timeout=timeout)


class SteepestDescent(LibrarySampler):
    """Steepest descent of `dwave.samplers` from random assignments, a hundred a read."""

    def __init__(self) -> None:
        self.library = require(
            "dwave.samplers", "the sampler steepest_descent"
        ).SteepestDescentSampler()

    def read(
        self, bqm: dimod.BinaryQuadraticModel, number: int, seed: int, seconds_left: float
    ) -> dimod.SampleSet:
        starts = 100 if bqm.num_variables <= 1000 else 1
        return self.library.sample(bqm, num_reads=starts, seed=seed)


class TreeDecomposition(dimod.Sampler):
    """The exact minimum where the interactions are nearly a tree (`dwave.samplers`)."""

    parameters: ClassVar[dict[str, object]] = {"num_reads": []}
    properties: ClassVar[dict[str, object]] = {}

    def __init__(self) -> None:
        self.library = require(
            "dwave.samplers", "the sampler tree_decomposition"
        ).TreeDecompositionSolver()

    def sample(
        self, bqm: dimod.BinaryQuadraticModel, *, num_reads: int = 1, **unknown: object
    ) -> dimod.SampleSet:
        """The `num_reads` best assignments; raises ValueError where the treewidth is too large."""
        self.remove_unknown_kwargs(**unknown)
        sample_set = self.library.sample(bqm, num_reads=num_reads)
        # The library computes in sums of its own; the energies are to be the model's.
        return dimod.SampleSet.from_samples_bqm(sample_set, bqm, info={"is_cut_off": False})


def beta_range_of(bqm: dimod.BinaryQuadraticModel) -> tuple[float, float]:
    """Inverse temperatures from hot to cold for an anneal over spins.

    A spin feels about the root of the sum of its squared couplings, in a dense model far less than
    their sum, which the library's default begins with. The model's vectors are read, not its dicts.
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
    """Few rows of all sets, best first."""
    joined = dimod.concatenate(sets) if len(sets) > 1 else sets[0]
    return joined.truncate(KEPT_ROWS)
