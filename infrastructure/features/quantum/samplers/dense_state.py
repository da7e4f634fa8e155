"""An assignment of zeros and ones that changes by flips, or by swaps of a one and a zero.

A flip of variable i changes the energy by `sign[i] * field[i]`. A flip adds one row of the matrix
to the field or subtracts it: one contiguous pass over 4 n bytes. A sweep looks for moves one block
at a time with one vector comparison. It makes only the accepted moves, and checks each again after
the moves before it. So a cold sweep, which accepts little, costs almost nothing. The field is
float32 and accumulates rounding errors; `refresh` sums it again.
"""

from collections.abc import Callable
from typing import Self

import numpy as np

from infrastructure.features.quantum.samplers.dense_problem import (
    Bits,
    DenseProblem,
    Floats,
    Indices,
)

BLOCK = 256  # variables compared at once
REFRESH_AFTER_FLIPS = 200_000  # float32 sums then have a relative error of about 1e-5
EXCHANGES_AT_ONCE = 80_000  # pairs compared at once; they fit into the processor's cache


def never() -> bool:
    """Return False: the stop condition of a search that is never stopped early."""
    return False


class DenseState:
    """An assignment of zeros and ones, and the change of energy by each flip.

    Attributes:
        sign: +1 if the variable is zero, -1 if it is one; (n,) float32.
        field: change of energy if the variable is one instead of zero; (n,) float32.
        energy: energy of the assignment.
        num_flips: flips since the field was last summed.
    """

    def __init__(self, matrix: Floats, field: Floats, sign: Floats, energy: float) -> None:
        self.matrix, self.field, self.sign, self.energy = matrix, field, sign, energy
        self.num_flips = 0

    @classmethod
    def of(cls, problem: DenseProblem, bits: Bits) -> Self:
        """Create the state of an assignment (n,) of zeros and ones."""
        field = problem.field(bits)
        state = cls(problem.matrix, field, (1 - 2 * bits).astype(np.float32), 0.0)
        state.energy = _energy(problem, field, bits)
        return state

    @property
    def bits(self) -> Bits:
        """The assignment as 0 and 1; (n,)."""
        ones: Bits = (self.sign < 0).astype(np.int8)
        return ones

    @property
    def least_gain(self) -> float:
        """The smallest decrease of energy that float32 resolves; below it, a search could cycle."""
        return 4 * float(np.finfo(np.float32).eps) * float(np.abs(self.field).max(initial=0.0))

    def refresh(self, problem: DenseProblem, after_flips: int = REFRESH_AFTER_FLIPS) -> None:
        """Sum field and energy again after more than `after_flips` flips, as rounding adds up."""
        if self.num_flips > after_flips:
            self.field = problem.field(self.bits)
            self.energy = _energy(problem, self.field, self.bits)
            self.num_flips = 0

    def copy(self) -> Self:
        copied = type(self)(self.matrix, self.field.copy(), self.sign.copy(), self.energy)
        copied.num_flips = self.num_flips
        return copied

    def flip(self, i: int) -> None:
        sign = self.sign.item(i)
        self.energy += sign * self.field.item(i)
        if sign > 0:
            self.field += self.matrix[i]
        else:
            self.field -= self.matrix[i]
        self.sign[i] = -sign
        self.num_flips += 1


class FlipState(DenseState):
    """An assignment that changes by flips of single variables.

    Attributes:
        num_sweeps: number of sweeps so far.
    """

    num_sweeps: int = 0

    def restricted(self, indices: Indices) -> Self:
        """Return the assignment of only these variables, with all others fixed."""
        matrix = self.matrix[np.ix_(indices, indices)]
        return type(self)(matrix, self.field[indices], self.sign[indices], self.energy)

    def take(self, indices: Indices, other: DenseState) -> None:
        """Copy the values of `indices` from `other`, a state over these variables only."""
        for i in indices[self.sign[indices] != other.sign].tolist():
            self.flip(i)

    def sweep(self, temperature: float, random: np.random.Generator) -> int:
        """Consider a flip of every variable by the Metropolis rule; return the number of flips.

        In small problems every other sweep goes from the last variable to the first. In a fixed
        order, a variable whose gain is always taken away by an earlier flip would never flip. For
        large problems, alternating order was slower.
        """
        limits = _accepted_rises(random, len(self.sign), temperature)
        sign, field, matrix, energy = self.sign, self.field, self.matrix, self.energy
        self.num_sweeps += 1
        num_flips, turn = 0, -1 if len(limits) <= BLOCK and self.num_sweeps % 2 else 1
        for start in range(0, len(limits), BLOCK)[::turn]:
            end = start + BLOCK
            rises = sign[start:end] * field[start:end]
            for i in (start + (rises < limits[start:end]).nonzero()[0]).tolist()[::turn]:
                side = sign.item(i)
                rise = side * field.item(i)
                if rise < limits.item(i):  # `flip`, without the cost of calling it
                    energy += rise
                    (np.add if side > 0 else np.subtract)(field, matrix[i], field)
                    sign[i] = -side
                    num_flips += 1
        self.energy = energy
        self.num_flips += num_flips
        return num_flips

    def descend(self, random: np.random.Generator) -> None:
        """Flip variables until no flip lowers the energy by more than rounding."""
        least = self.least_gain
        while self.sweep(-least, random):
            pass

    def start_randomly(self, random: np.random.Generator) -> None:
        """Change to a random assignment."""
        for i in (random.random(len(self.sign)) < 0.5).nonzero()[0].tolist():
            self.flip(i)


class SwapState(DenseState):
    """An assignment with a fixed number of ones, which changes by swaps of a one and a zero."""

    def descend(self, is_over: Callable[[], bool] = never) -> None:
        """Swap ones and zeros until no swap lowers the energy, or `is_over` returns True.

        Each one is swapped with its best zero if that lowers the energy by more than rounding.
        """
        least, start, num_quiet = self.least_gain, 0, 0
        ones = np.flatnonzero(self.sign < 0)
        block = max(1, EXCHANGES_AT_ONCE // len(self.sign))
        while num_quiet < len(ones) < len(self.sign) and not is_over():
            rises, zeros = self._best_exchanges(ones[start : start + block])
            num_quiet += len(rises)
            for place in rises.argsort(kind="stable")[: np.count_nonzero(rises < -least)].tolist():
                one, zero = int(ones[start + place]), int(zeros[place])
                if self._exchange_if(one, zero, -least):
                    ones[start + place] = zero
                    num_quiet = 0
            if num_quiet:  # otherwise repeat this block
                start = start + block if start + block < len(ones) else 0

    def kick(self, size: int, random: np.random.Generator) -> None:
        """Swap `size` random ones with as many random zeros, or fewer if there are not enough."""
        ones, zeros = np.flatnonzero(self.sign < 0), np.flatnonzero(self.sign > 0)
        size = min(size, len(ones), len(zeros))
        for side in (ones, zeros):
            for i in side[random.permutation(len(side))[:size]].tolist():
                self.flip(i)

    def _best_exchanges(self, ones: Indices) -> tuple[Floats, Indices]:
        """Return, for each of these ones, its best swap: the energy change, and the zero."""
        coming = np.where(self.sign > 0, self.field, np.float32(np.inf))
        rises = self.matrix[ones]
        np.subtract(coming, rises, out=rises)
        zeros = rises.argmin(axis=1)
        return rises[np.arange(len(ones)), zeros] - self.field[ones], zeros

    def _exchange_if(self, one: int, zero: int, limit: float) -> bool:
        """Swap a one and a zero, if they still have these values and the energy rises by less than
        `limit`.

        Return whether they were swapped.
        """
        if self.sign.item(zero) < 0:
            return False
        between = self.matrix.item(one, zero)
        is_low = self.field.item(zero) - self.field.item(one) - between < limit
        if is_low:
            self.flip(one)
            self.flip(zero)
        return is_low


def with_ones(problem: DenseProblem, bits: Bits, num_ones: int) -> SwapState:
    """Return a state with exactly `num_ones` ones, by the cheapest flips from `bits`."""
    state = DenseState.of(problem, bits)
    missing = num_ones - int(bits.sum())
    for _ in range(abs(missing)):
        side = state.sign > 0 if missing > 0 else state.sign < 0
        state.flip(int(np.where(side, state.sign * state.field, np.inf).argmin()))
    return SwapState.of(problem, state.bits)


def _energy(problem: DenseProblem, field: Floats, bits: Bits) -> float:
    """Compute the energy of an assignment from its field.

    Half of linear and field is summed over the ones, because each interaction is in two fields.
    """
    ones = bits.astype(bool)
    return problem.offset + 0.5 * float(
        problem.linear[ones].sum(dtype=np.float64) + field[ones].sum(dtype=np.float64)
    )


def _accepted_rises(random: np.random.Generator, count: int, temperature: float) -> Floats:
    """Draw the rise of energy up to which each move is accepted, exponentially distributed.

    For a temperature of zero or below, all rises are equal to the temperature: a move must lower
    the energy by at least that much.
    """
    if temperature <= 0:
        return np.full(count, temperature, np.float32)
    limits = random.standard_exponential(count, np.float32)
    limits *= np.float32(temperature)
    return limits
