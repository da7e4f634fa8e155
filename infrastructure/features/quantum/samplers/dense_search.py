"""Annealing of a small population of assignments, and recombination until no child is better.

A child keeps the values that its parents share, and searches over the other variables. This smaller
problem fits into the processor's cache. This is memetic search (Merz & Freisleben 1999); variables
on which good solutions agree are fixed (Wang, Lü, Glover, Hao: "Effective variable fixation and
scoring strategies for binary quadratic programming", 2011).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from infrastructure.features.quantum.samplers.dense_problem import Indices
from infrastructure.features.quantum.samplers.dense_search_base import (
    Search,
    TimeIsUp,
    distance,
    distinct,
)
from infrastructure.features.quantum.samplers.dense_state import FlipState

# Temperatures are multiples of the problem's field scale; a spin glass freezes at a quarter of it.
# Large problems begin below that, because time is short. Small ones, sparse ones above all, need a
# higher temperature.
HOT, WARM, COLD = 0.13, 0.08, 0.02
SMALL, SMALL_HOT, SMALL_WARM = 1000, 0.25, 0.15
ANNEAL_SWEEPS, CHILD_SWEEPS, LAST_SWEEPS = 300, 100, 2
FEWEST_SWEEPS = 60
SWEEPS_PER_VARIABLE = 0.3  # sweeps of an anneal; small problems need no more
# The population of the first read is half of the others, because time may be short. Larger
# populations come no nearer to the optimum than several reads in the same time.
LEAST_POPULATION, FIRST_POPULATION, LARGEST_POPULATION = 8, 16, 32
VARIABLES_EACH = 20  # variables of the problem per assignment of a population
MOST_CHAMPIONS = 8
# Variables that a child decides again although its parents may agree on them.
UNDECIDED_SHARE, FEWEST_UNDECIDED = 0.16, 100
PATIENCE = 3  # children without an improvement, as a multiple of the population


@dataclass
class DenseSearch(Search[FlipState]):
    """A search with independent reads whose best assignments are recombined.

    Attributes:
        scale: the problem's `field_scale`.
    """

    same_variables: ClassVar[int] = 5
    converged_reads: ClassVar[int] = 3

    scale: float = 1.0

    def read(self) -> None:
        """Do one independent search, and add its best assignment to `champions`.

        Raises:
            TimeIsUp: the deadline has passed; the results so far are kept.
        """
        population: list[FlipState] = []
        start = FlipState.of(self.problem, np.zeros(self.problem.num_variables, np.int8))
        wanted = self._population()
        hot, _ = self._temperatures()
        while len(population) < wanted:
            state = start.copy()
            state.start_randomly(self.random)
            self._anneal(state, hot, self._num_sweeps(ANNEAL_SWEEPS))
            population.append(self._improved(state))
        self._evolve(population)
        champion = min(population, key=lambda state: state.energy)
        self.read_energies.append(champion.energy)
        self.champions.append(champion)
        if len(self.champions) > 1:
            self._evolve(self.champions)
        self.champions = distinct(self.champions, self.same_variables)[:MOST_CHAMPIONS]

    def _evolve(self, population: list[FlipState]) -> None:
        """Recombine a population in place, until new children bring no improvement."""
        best = min(state.energy for state in population)
        fruitless = 0
        while fruitless < PATIENCE * len(population):
            first, second = self.random.choice(len(population), 2, replace=False).tolist()
            child = self._child(population[first], population[second])
            self.num_steps += 1
            place = _place_of(child, population, first, second)
            if place is not None:
                population[place] = child
            fruitless += 1
            if child.energy < _just_below(best):
                best, fruitless = child.energy, 0

    def _child(self, first: FlipState, second: FlipState) -> FlipState:
        """Return a child that keeps the values its parents have in common, and searches over the
        rest.
        """
        open_variables = _disputed(first, second)
        _, warm = self._temperatures()
        child = first.copy()
        part = child.restricted(open_variables)
        self._anneal(part, warm, self._num_sweeps(CHILD_SWEEPS))
        child.take(open_variables, part)
        for _ in range(LAST_SWEEPS):
            child.sweep(COLD * self.scale, self.random)
        return self._improved(child)

    def _anneal(self, state: FlipState, start: float, num_sweeps: int) -> None:
        for temperature in np.geomspace(start * self.scale, COLD * self.scale, num_sweeps):
            state.sweep(float(temperature), self.random)
            if self.is_over():
                # An unfinished anneal is worth something only if there is no other result.
                if self.best is None and len(state.sign) == self.problem.num_variables:
                    state.descend(self.random)
                    self.best = state
                raise TimeIsUp

    def _temperatures(self) -> tuple[float, float]:
        """Return the start temperatures for a full anneal and for the variables of a child."""
        is_small = self.problem.num_variables <= SMALL
        return (SMALL_HOT, SMALL_WARM) if is_small else (HOT, WARM)

    def _population(self) -> int:
        """Return the population size of the next read, which is smaller for a small problem."""
        largest = max(LEAST_POPULATION, self.problem.num_variables // VARIABLES_EACH)
        grown = FIRST_POPULATION << min(len(self.read_energies), 8)
        return min(LARGEST_POPULATION, largest, grown)

    def _num_sweeps(self, most: int) -> int:
        """Return the number of sweeps in an anneal, which is smaller for a small problem."""
        enough = int(SWEEPS_PER_VARIABLE * self.problem.num_variables)
        return min(most, max(FEWEST_SWEEPS, enough))

    def _improved(self, state: FlipState) -> FlipState:
        state.descend(self.random)
        state.refresh(self.problem)
        if self.best is None or state.energy < self.best.energy:
            self.best = state.copy()
        if self.is_over():
            raise TimeIsUp
        return state


def _place_of(
    child: FlipState, population: Sequence[FlipState], first: int, second: int
) -> int | None:
    """Return the index of the assignment that a child replaces; None if the child is dropped.

    A child replaces only an assignment with a higher energy: its twin (nearly the same assignment)
    if the population has one, otherwise the nearer parent or else the other parent. If a child and
    its twin both stayed, the differences that recombination needs would be lost.
    """
    distances = [distance(child, state) for state in population]
    twin = int(np.argmin(distances))
    if distances[twin] <= DenseSearch.same_variables:
        places = [twin]
    else:
        nearer = first if distances[first] <= distances[second] else second
        places = [nearer, first + second - nearer]
    worse = (place for place in places if child.energy < _just_below(population[place].energy))
    return next(worse, None)


def _just_below(energy: float) -> float:
    """Return an energy that is lower by slightly more than the rounding error of a sum."""
    return energy - 1e-9 * max(1.0, abs(energy))


def _disputed(first: FlipState, second: FlipState) -> Indices:
    """Return the variables over which a child searches.

    The parents have different values of these variables, or a flip changes the energy of the first
    parent only a little.
    """
    is_open = first.sign != second.sign
    count = min(len(is_open), max(FEWEST_UNDECIDED, int(UNDECIDED_SHARE * len(is_open))))
    is_open[np.argsort(np.abs(first.field), kind="stable")[:count]] = True
    return np.flatnonzero(is_open)
