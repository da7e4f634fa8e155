"""The base class of searches over a dense problem by independent reads."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import numpy as np

from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.dense_problem import DenseProblem
from infrastructure.features.quantum.samplers.dense_state import DenseState

SAME_ENERGY = 1e-6  # relative to the energy without the offset: the error of running sums


State = TypeVar("State", bound=DenseState)


class TimeIsUp(Exception):  # noqa: N818 - no error: the search ends where it is
    """The exception that ends a search when its deadline has passed."""


@dataclass
class Search(ABC, Generic[State]):
    """The state of a search for the lowest energy of one problem.

    Attributes:
        spare_seconds: how long before the deadline the search ends.
        best: the assignment with the lowest energy.
        champions: the best assignments of the reads.
        read_energies: the lowest energy of each finished read.
        num_steps: number of recombinations or kicks so far.
        is_cut_off: whether the deadline ended the search.
    """

    problem: DenseProblem
    random: np.random.Generator
    deadline: Deadline
    spare_seconds: float
    best: State | None = None
    champions: list[State] = field(default_factory=list)
    read_energies: list[float] = field(default_factory=list)
    num_steps: int = 0
    is_cut_off: bool = False

    same_variables: ClassVar[int]  # assignments that differ in no more are the same
    converged_reads: ClassVar[int]  # reads that must reach the lowest energy

    @abstractmethod
    def read(self) -> None:
        """Do one independent search, and add its best assignment to `champions`.

        Raises:
            TimeIsUp: the deadline has passed; the results so far are kept.
        """

    def run(self, num_reads: int) -> None:
        """Do `num_reads` reads, or fewer if they converge or the deadline passes."""
        try:
            for _ in range(num_reads):
                self.read()
                if self.is_converged:
                    return
        except TimeIsUp:
            self.is_cut_off = True

    def ranked(self) -> list[State]:
        """Return the distinct assignments that the search found, best first."""
        states = list(self.champions)
        if self.best is not None:
            states.append(self.best)
        return distinct(states, self.same_variables)

    @property
    def is_converged(self) -> bool:
        """True if several independent reads ended at the lowest energy."""
        if self.best is None:
            return False
        rounding = SAME_ENERGY * abs(self.best.energy - self.problem.offset) + self.best.least_gain
        limit = self.best.energy + rounding
        return sum(energy <= limit for energy in self.read_energies) >= self.converged_reads

    def is_over(self) -> bool:
        """Return whether the deadline has passed, and record it in `is_cut_off`."""
        self.is_cut_off = self.deadline.seconds_left <= self.spare_seconds
        return self.is_cut_off


def distance(one: DenseState, other: DenseState) -> int:
    """Return the number of variables in which two assignments differ."""
    return int(np.count_nonzero(one.sign != other.sign))


def distinct(states: Sequence[State], same_variables: int) -> list[State]:
    """Return the states without near-duplicates, by energy."""
    kept: list[State] = []
    for state in sorted(states, key=lambda state: state.energy):
        if all(distance(state, other) > same_variables for other in kept):
            kept.append(state)
    return kept
