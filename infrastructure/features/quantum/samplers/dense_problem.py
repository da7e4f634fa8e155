"""A binary quadratic model as one float32 matrix, which makes a search over it fast."""

from collections.abc import Hashable
from dataclasses import dataclass

import dimod
import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import InputError
from infrastructure.core.hardware import GIB
from infrastructure.features.quantum.samplers.bqm_arrays import Vectors, coefficient_sum, vectors_of

MOST_MATRIX_BYTES = 2 * GIB
BYTES_PER_ENTRY = 4
ROWS_AT_ONCE = 512  # keeps a temporary copy of rows small compared with the matrix

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int8]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class DenseProblem:
    """A problem with the energy `offset + linear·x + ½ x·matrix·x` over zeros and ones.

    Attributes:
        linear: linear term of each variable; (n,).
        matrix: symmetric with a zero diagonal; (n, n).
        offset: energy if all variables are zero.
        variables: labels, in the order of the arrays.
    """

    linear: Floats
    matrix: Floats
    offset: float
    variables: tuple[Hashable, ...]

    @property
    def num_variables(self) -> int:
        return len(self.linear)

    def field_scale(self) -> float:
        """Return how strongly the other variables typically affect one variable.

        It is the root of the mean, over variables, of the sum of squared entries. Temperatures are
        multiples of this value. Without interactions, it is the root mean square of the linear
        terms; for a model of zeros, 1.
        """
        squares = np.einsum("ij,ij->i", self.matrix, self.matrix, dtype=np.float64)
        squares = squares if squares.any() else np.square(self.linear, dtype=np.float64)
        return float(np.sqrt(squares.mean())) or 1.0

    @classmethod
    def of(cls, bqm: dimod.BinaryQuadraticModel, num_ones: int | None = None) -> "DenseProblem":
        """Convert a binary quadratic model of either vartype.

        Memory: 24 bytes per interaction, in addition to 4 n² for the matrix. If the number of ones
        is given, the mean of all pairs and the mean of all linear terms only contribute a constant.
        Both are subtracted before rounding to float32, so a penalty on that number costs no
        precision.

        Raises:
            ValueError: the matrix would be too large, or a coefficient is not finite in float32.
        """
        refuse_too_large(bqm.num_variables)
        variables = tuple(bqm.variables)
        n = len(variables)
        vectors = vectors_of(bqm)
        linear, rows, columns, biases, offset = vectors
        if bqm.vartype is dimod.SPIN:
            # s = 2x - 1
            offset += float(biases.sum() - linear.sum())
            touched = np.bincount(rows, biases, n) + np.bincount(columns, biases, n)
            linear = 2 * linear - 2 * touched[:n]
            biases = 4 * biases
        size = coefficient_sum(Vectors(linear, rows, columns, biases, offset))
        if not np.isfinite(size) or size > np.finfo(np.float32).max:
            raise InputError("quantum.coefficient_exceeds_float32")
        common = 0.0
        if num_ones is not None and n > 1:
            common = float(biases.sum(dtype=np.float64)) / (n * (n - 1) / 2)
            mean = float(linear.mean())
            offset += common * num_ones * (num_ones - 1) / 2 + mean * num_ones
            biases, linear = np.subtract(biases, common, dtype=np.float64), linear - mean
        matrix = np.full((n, n), -common / 2, np.float32)
        if common:
            np.fill_diagonal(matrix, 0)
            matrix[columns, rows] = 0
        matrix[rows, columns] = biases
        del vectors, rows, columns, biases
        _add_transposed(matrix)
        return cls(linear.astype(np.float32), matrix, offset, variables)

    def restricted(self, indices: Indices) -> Floats:
        """Return the matrix of the interactions among some variables; (m, m)."""
        return self.matrix[np.ix_(indices, indices)]

    def field(self, bits: Bits) -> Floats:
        """Return `linear + matrix·bits`, summed in float64; (n,)."""
        total = self.linear.astype(np.float64)
        ones = np.flatnonzero(bits)
        for start in range(0, len(ones), ROWS_AT_ONCE):
            rows = self.matrix[ones[start : start + ROWS_AT_ONCE]]
            total += rows.sum(axis=0, dtype=np.float64)
        return total.astype(np.float32)


def matrix_fits(num_variables: int) -> bool:
    """Return whether the matrix for this number of variables is within the memory limit."""
    return BYTES_PER_ENTRY * num_variables**2 <= MOST_MATRIX_BYTES


def refuse_too_large(num_variables: int) -> None:
    """Raise ValueError if a matrix for this number of variables would not fit."""
    size = BYTES_PER_ENTRY * num_variables**2
    if not matrix_fits(num_variables):
        raise InputError(
            "quantum.matrix_too_large",
            count=num_variables,
            size=size / GIB,
            limit=MOST_MATRIX_BYTES / GIB,
        )


def _add_transposed(matrix: Floats) -> None:
    """Make a triangular matrix symmetric in place, tile by tile.

    Each interaction is on only one side of the diagonal, so adding the transpose does not double
    any of them.
    """
    n = len(matrix)
    for i in range(0, n, ROWS_AT_ONCE):
        for j in range(i, n, ROWS_AT_ONCE):
            upper = matrix[i : i + ROWS_AT_ONCE, j : j + ROWS_AT_ONCE]
            lower = matrix[j : j + ROWS_AT_ONCE, i : i + ROWS_AT_ONCE]
            both = upper + lower.T
            upper[:] = both
            lower[:] = both.T
