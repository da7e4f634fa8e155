"""Search among the assignments with a given number of ones, by random kicks and exchanges.

Iterated local search (Lourenço, Martin, Stützle: "Iterated Local Search", 2003): a kick swaps some
random ones with as many random zeros. Then ones and zeros are exchanged as long as that lowers the
energy. The size of each kick is drawn at random, because some problems (near-copies among the
examples) need small kicks and others (several equally good groups) large ones. Before, annealing by
swaps was used; benchmarks/results/quantum_quality.md compares the two methods.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from infrastructure.features.quantum.samplers.dense_search_base import Search, TimeIsUp, distinct
from infrastructure.features.quantum.samplers.dense_state import SwapState, with_ones

LARGEST_KICK = 0.2  # share of the ones or of the zeros, whichever are fewer
# The first read has KICKS divided by the number of ones or zeros, whichever are fewer. Each read
# has twice as many as the one before: short walks explore, long ones come nearer to the optimum.
KICKS, FEWEST_KICKS, KICKS_PER_VARIABLE, MOST_KICKS = 30_000, 100, 10, 1000
READS = 2  # if their number is not given
ACCEPTED_RISE = 0.1  # temperature of the walk, as a multiple of the mean rise after a kick
MEMORY = 100  # number of rises in this mean
MOST_CHAMPIONS = 8


@dataclass
class ExchangeSearch(Search[SwapState]):
    """A search that moves by random kicks from one local minimum to the next.

    Attributes:
        num_ones: number of ones in every assignment.
    """

    same_variables: ClassVar[int] = 0
    converged_reads: ClassVar[int] = 3

    num_ones: int = 0

    def read(self) -> None:
        """Do one walk: the first from the greedy choice, the others from a random assignment."""
        start = self._anywhere() if self.read_energies else self._greedy()
        best = self._walked(start)
        self.read_energies.append(best.energy)
        self.champions = distinct([*self.champions, best], self.same_variables)[:MOST_CHAMPIONS]

    def _walked(self, walker: SwapState) -> SwapState:
        """Walk from an assignment, and return the best assignment on the way."""
        self._settle(walker)
        best, mean_rise, num_rises = walker, 0.0, 0
        for _ in range(self._num_kicks()):
            kicked = walker.copy()
            kicked.kick(self._kick_size(), self.random)
            self._settle(kicked)
            self.num_steps += 1
            rise = kicked.energy - walker.energy
            if rise > kicked.least_gain:
                num_rises = min(MEMORY, num_rises + 1)
                mean_rise += (rise - mean_rise) / num_rises
            if rise <= ACCEPTED_RISE * mean_rise * self.random.standard_exponential():
                walker = kicked
            if self._is_better(kicked, best):
                best = kicked
        return best

    def _settle(self, state: SwapState) -> None:
        """Exchange ones and zeros until no exchange lowers the energy.

        Raises:
            TimeIsUp: the deadline has passed.
        """
        state.descend(self.is_over)
        state.refresh(self.problem)
        if self.best is None or self._is_better(state, self.best):
            self.best = state.copy()
        if self.is_over():
            raise TimeIsUp

    def _is_better(self, state: SwapState, other: SwapState) -> bool:
        """Return whether the energy of `state` is lower than that of `other` by more than rounding.

        If the energy of `state` seems lower, it is summed again in float64 and compared again.
        """
        limit = other.energy - state.least_gain
        if state.energy < limit:
            state.refresh(self.problem, after_flips=0)
        return state.energy < limit

    def _greedy(self) -> SwapState:
        nothing = np.zeros(self.problem.num_variables, np.int8)
        return with_ones(self.problem, nothing, self.num_ones)

    def _anywhere(self) -> SwapState:
        bits = np.zeros(self.problem.num_variables, np.int8)
        bits[self.random.permutation(len(bits))[: self.num_ones]] = 1
        return SwapState.of(self.problem, bits)

    @property
    def _fewer(self) -> int:
        """The number of ones or of zeros, whichever is smaller."""
        return min(self.num_ones, self.problem.num_variables - self.num_ones)

    def _kick_size(self) -> int:
        """Draw the size of a kick, from 1 to the largest, uniformly on a logarithmic scale."""
        return round(float(max(1.0, LARGEST_KICK * self._fewer) ** self.random.random()))

    def _num_kicks(self) -> int:
        """Return the number of kicks in the next walk."""
        most = min(MOST_KICKS, KICKS_PER_VARIABLE * self.problem.num_variables)
        first = min(most, max(FEWEST_KICKS, KICKS // max(1, self._fewer)))
        return first << min(len(self.read_energies), 10) if self._fewer else 0
