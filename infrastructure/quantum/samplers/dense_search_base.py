"""What searches over a dense problem share: reads that know nothing of each other, and an end."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import numpy as np

from infrastructure.quantum.samplers.deadline import Deadline
from infrastructure.quantum.samplers.dense_problem import Bits, DenseProblem
from infrastructure.quantum.samplers.dense_state import DenseState

SAME_ENERGY = 1e-6  # of what is not constant: what running sums differ by


State = TypeVar("State", bound=DenseState)


class TimeIsUp(Exception):  # noqa: N818 - no error: the search ends where it is
    """The deadline is there."""


@dataclass
class Search(ABC, Generic[State]):
    """One question while it is worked on.

    Attributes:
        spare_seconds: how long before the deadline the search ends.
        best: the assignment of the lowest energy.
        champions: the best ones of reads.
        read_energies: of the best of each read that has ended.
        num_steps: children or kicks so far.
        is_cut_off: the deadline came first.
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

    same_variables: ClassVar[int]  # assignments that differ in no more are one
    converged_reads: ClassVar[int]  # reads that came to the same energy, and none to a lower one

    @abstractmethod
    def read(self, given: Sequence[Bits]) -> None:
        """One independent search, which begins with what is given; its best is a champion.

        Raises:
            TimeIsUp: the deadline is there; what was found is kept.
        """

    def run(self, given: Sequence[Bits], num_reads: int) -> None:
        """So many reads, or fewer where they come to the same or the deadline is there."""
        try:
            for number in range(num_reads):
                self.read(given if number == 0 else [])
                if self.is_converged:
                    return
        except TimeIsUp:
            self.is_cut_off = True

    def ranked(self) -> list[State]:
        """What was found, best first."""
        states = list(self.champions)
        if self.best is not None:
            states.append(self.best)
        return distinct(states, self.same_variables)

    @property
    def is_converged(self) -> bool:
        """Whether searches that know nothing of each other end at the same energy."""
        if self.best is None:
            return False
        rounding = SAME_ENERGY * abs(self.best.energy - self.problem.offset) + self.best.least_gain
        limit = self.best.energy + rounding
        return sum(energy <= limit for energy in self.read_energies) >= self.converged_reads

    def is_over(self) -> bool:
        """Whether the deadline is there; remembered."""
        self.is_cut_off = self.deadline.seconds_left <= self.spare_seconds
        return self.is_cut_off


def distance(one: DenseState, other: DenseState) -> int:
    """In how many variables two assignments differ."""
    return int(np.count_nonzero(one.sign != other.sign))


def distinct(states: Sequence[State], same_variables: int) -> list[State]:
    """Best first, each but once."""
    kept: list[State] = []
    for state in sorted(states, key=lambda state: state.energy):
        if all(distance(state, other) > same_variables for other in kept):
            kept.append(state)
    return kept
