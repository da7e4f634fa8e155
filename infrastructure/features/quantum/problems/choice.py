"""The choice of exactly k of n items with a linear and a pairwise objective.

Data selection and block selection are such problems. A penalty enforces the count. The strength of
the penalty is computed from the coefficients, so it needs no tuning.
"""

from collections.abc import Sequence
from typing import Any

import dimod
import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.features.quantum.problems.problem import QuantumProblem, Sample, Variable
from infrastructure.features.quantum.solving.arrays import Array

ROWS_AT_A_TIME = 100  # rows of the matrix, while a model is built: a few MB at n = 5000
MARGIN = 1.05  # ratio of the penalty to its bound, for rounding


class Choice(QuantumProblem):
    """The problem min offset + sum_i a_i x_i + s * sum_{i<j} B_ij x_i x_j with exactly k ones in x.

    Args:
        labels: the names of the n variables, all different.
        num_chosen: k, from 1 to n.
        linear: a, shape (n,).
        pairs: B, shape (n, n), symmetric. The diagonal is not read. The model has the same dtype,
            float32 or float64. The array is kept, not copied.
        pair_scale: s.
        offset: the cost of the empty choice.

    Raises:
        ValueError: the sizes do not match, a label occurs twice, or a number is not finite.
    """

    def __init__(
        self,
        labels: Sequence[Variable],
        num_chosen: int,
        linear: Array,
        pairs: Array,
        *,
        pair_scale: float = 1.0,
        offset: float = 0.0,
    ) -> None:
        self.labels = list(labels)
        self.num_chosen = num_chosen
        self.linear = np.asarray(linear, dtype=np.float64)
        self.pairs = np.asarray(pairs)
        self.pair_scale = float(pair_scale)
        self.offset = float(offset)
        self._index = {label: i for i, label in enumerate(self.labels)}
        self._check()

    def formulate(self) -> dimod.BinaryQuadraticModel:
        """Build the model: the objective plus `penalty_strength() * (sum x - k)^2`.

        With this penalty, every optimum has k ones. The model takes 8 bytes for each ordered pair
        (200 MB at n = 5000 in float32), in addition to `pairs`. It is built in pieces, so nothing
        else of that size is allocated.
        """
        strength, k, n = self.penalty_strength(), self.num_chosen, len(self.labels)
        dtype = self.pairs.dtype
        bqm = dimod.BinaryQuadraticModel(n, "BINARY", dtype=dtype)
        linear: Any = (self.linear + strength * (1 - 2 * k)).astype(dtype)
        bqm.add_linear_from_array(linear)
        bqm.offset += self.offset + strength * k**2
        for start in range(0, n, ROWS_AT_A_TIME):
            end = min(n, start + ROWS_AT_A_TIME)
            is_below = np.tri(end - start, end, start - 1, dtype=np.bool_)
            rows = np.repeat(np.arange(start, end, dtype=np.int32), is_below.sum(axis=1))
            columns = np.broadcast_to(np.arange(end, dtype=np.int32), is_below.shape)[is_below]
            values = self.pair_scale * self.pairs[start:end, :end][is_below] + 2 * strength
            bqm.data.add_quadratic_from_arrays(rows, columns, values.astype(dtype))
        bqm.relabel_variables(dict(enumerate(self.labels)), inplace=True)
        return bqm

    def penalty_strength(self) -> float:
        """Return a penalty strength with which every assignment of the lowest energy has k ones.

        The strength exceeds the cost of the cheapest flip towards k at any wrong count, so such a
        flip lowers the energy. This bound uses the worst row; a subclass may have a tighter one.
        The smaller the strength, the lower the barriers between good answers.
        """
        positive, negative = self._row_sums()
        adding = float((self.linear + positive).max())
        removing = float(-(self.linear + negative).min())
        return MARGIN * max(adding, removing) or 1.0

    def energy_of(self, chosen: Array) -> float:
        """Return the objective, without penalty, of any set of chosen indices, in float64."""
        block = self.pairs[np.ix_(chosen, chosen)].astype(np.float64)
        both = (block.sum() - np.trace(block)) / 2
        return float(self.offset + self.linear[chosen].sum() + self.pair_scale * both)

    def indices(self, sample: Sample) -> Array:
        """Return the indices of the chosen items (the ones) in a sample, ascending."""
        return np.array([i for i, label in enumerate(self.labels) if sample[label]], dtype=np.int64)

    def sample_of(self, chosen: Array) -> Sample:
        """Return the sample in which exactly these indices are ones, and all others zeros."""
        ones = set(np.asarray(chosen).tolist())
        return {label: int(i in ones) for i, label in enumerate(self.labels)}

    def repair(self, sample: Sample) -> Sample:
        """Add or remove items one at a time, the cheapest first, until exactly k are chosen."""
        chosen = self.indices(sample)
        if len(chosen) == self.num_chosen:
            return sample
        return self.sample_of(self._repaired(chosen))

    def decode(self, sample: Sample) -> object:
        """Return the k chosen labels, in the order of the variables."""
        return [self.labels[i] for i in self.indices(self.repair(sample))]

    def facts(self) -> JsonObject:
        return {"num_candidates": len(self.labels), "num_chosen": self.num_chosen}

    def _repaired(self, chosen: Array) -> Array:
        is_chosen = np.zeros(len(self.labels), dtype=np.bool_)
        is_chosen[chosen] = True
        joint = np.zeros(len(self.labels))  # joint term of each item with the chosen ones
        for i in chosen:
            joint += self.pairs[i]
        joint -= np.where(is_chosen, self.pairs.diagonal(), 0.0)
        while (excess := int(is_chosen.sum()) - self.num_chosen) != 0:
            cost = self.linear + self.pair_scale * joint
            candidates = np.flatnonzero(is_chosen == (excess > 0))
            flipped = candidates[np.argmin(-cost[candidates] if excess > 0 else cost[candidates])]
            is_chosen[flipped] = excess < 0
            joint += self.pairs[flipped] if excess < 0 else -self.pairs[flipped]
        return np.flatnonzero(is_chosen)

    def _row_sums(self) -> tuple[Array, Array]:
        """Return the sums of the positive and of the negative scaled pairs in each row.

        Only the k - 1 largest positive pairs of a row are summed, because at most k - 1 other items
        are chosen when an item is added.
        """
        n, others = len(self.labels), max(1, self.num_chosen - 1)
        positive, negative = np.zeros(n), np.zeros(n)
        for i in range(n):
            row = self.pair_scale * self.pairs[i].astype(np.float64)
            row[i] = 0.0
            up = row[row > 0]
            if len(up) > others:
                up = np.partition(up, len(up) - others)[-others:]
            positive[i], negative[i] = up.sum(), row[row < 0].sum()
        return positive, negative

    def _check(self) -> None:
        n = len(self.labels)
        if len(self._index) != n:
            twice = next(x for i, x in enumerate(self.labels) if self._index[x] != i)
            raise InputError("quantum.duplicate_label", problem=self.name, label=twice)
        if not 1 <= self.num_chosen <= n:
            raise InputError(
                "quantum.cannot_choose_that_many",
                problem=self.name,
                num_chosen=self.num_chosen,
                total=n,
            )
        if self.linear.shape != (n,) or self.pairs.shape != (n, n):
            shapes = f"{self.linear.shape} and {self.pairs.shape}"
            raise InputError(
                "quantum.problem_shapes_differ", problem=self.name, count=n, shapes=shapes
            )
        if self.pairs.dtype not in (np.float32, np.float64):
            raise InputError("quantum.pairs_wrong_dtype", problem=self.name, dtype=self.pairs.dtype)
        finite = np.isfinite(self.pairs.sum()) or np.isfinite(self.pairs).all()
        if not (finite and np.isfinite(self.linear).all() and np.isfinite(self.offset)):
            raise InputError("quantum.problem_number_not_finite", problem=self.name)
