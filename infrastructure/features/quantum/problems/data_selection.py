"""The choice of the k training examples whose mean gradient is nearest to the target's.

u_i is the gradient of example i scaled to length 1 (sketched, over the trainable parameters), t the
direction of the mean of the target's gradients, rho the length of that mean. For a set S of k
examples

    E(S) = || (1/k) sum_S u_i - rho t ||^2 = x'Kx / k^2 - 2 rho r'x / k + rho^2,   K = UU', r = Ut.

This objective has no weight to tune, and 0 is a lower bound.

Measured on tiny models, with pools of duplicates, off-topic rows and noise (details in
benchmarks/results/quantum_step.md): from a dirty pool, a selection with clean rows as target trains
better than a random choice and, by a larger margin, better than the most relevant examples. A
selection of nine tenths trains slightly better than the whole pool at the same number of steps, and
a selection of half trains as well. An answer with a lower energy than the greedy choice trained
better if a tenth of a dirty pool was selected, but worse for a tenth of a clean pool. On clean
data, or with the pool itself as target, nothing is gained.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.features.quantum.problems.choice import MARGIN, Choice
from infrastructure.features.quantum.problems.problem import Sample, Training
from infrastructure.features.quantum.problems.selection_baselines import (
    deduplicated_top_relevance,
    exchanged,
    greedy_matching,
    random_choice,
    top_relevance,
)
from infrastructure.features.quantum.solving.arrays import Array


class DataSelection(Choice):
    """The problem of choosing `num_chosen` examples whose mean gradient matches the target's.

    Args:
        ids: ids of the n candidates in the training data; they label the variables.
        gradients: (n, d) gradients of the candidates, at any scale; d is 4096 or more if they are
            sketched.
        num_chosen: k.
        target: (m, d) gradients of the examples that the model should do well on (held-out rows), m
            is 2 or more; None: the candidates themselves, for a representative subset.
        seed: seed of the random baseline.

    Raises:
        ValueError: the shapes do not match, a gradient is zero or not finite, or the target's
            gradients have no common direction, so there is nothing to match.
    """

    name: ClassVar[str] = "data_selection"

    def __init__(
        self,
        ids: Sequence[int],
        gradients: Array,
        num_chosen: int,
        *,
        target: Array | None = None,
        seed: int = 0,
    ) -> None:
        units = unit_rows(gradients, ids, "example")
        goal = units if target is None else unit_rows(target)
        if goal.shape[1] != units.shape[1]:
            sizes = phrase(
                "quantum.target_gradient_sizes", target_size=goal.shape[1], size=units.shape[1]
            )
            raise InputError("quantum.target_gradient_size_differs", sizes=sizes)
        direction, self.rho = target_mean(goal, is_sample=target is not None)
        self.relevance = units.astype(np.float64) @ direction
        total = units.sum(axis=0, dtype=np.float64)
        self._total = float(np.linalg.norm(total)), float(total @ direction)
        self.seed = seed
        similarity = units @ units.T
        k = max(1, num_chosen)
        linear = similarity.diagonal() / k**2 - 2 * self.rho * self.relevance / k
        offset = self.rho**2
        super().__init__(
            [int(i) for i in ids],
            num_chosen,
            linear,
            similarity,
            pair_scale=2 / k**2,
            offset=offset,
        )

    def penalty_strength(self) -> float:
        """Return a penalty strength as in `Choice`, by a bound that is several times smaller.

        With V the sum over S, dropping one item costs, averaged over S,
        (-2 |V|^2 / k^2 + 2 rho t'V / k) / |S| + 1 / k^2. Adding one item costs, averaged over the
        n - |S| others, whose sum is G - V,
        1 / k^2 + 2 (G - V)'(V / k - rho t) / (k (n - |S|)). The cheapest flip costs at most the
        average. Both averages are largest if V points along t and, for adding, also along G:
        rho^2 / (2 |S|), and (|G| / k + rho)^2 k / 4 - rho t'G in the scalar product.
        """
        n, k = len(self.labels), self.num_chosen
        length, along = self._total
        dropping = self.rho**2 / (2 * (k + 1))
        inside = (length / k + self.rho) ** 2 * k / 4 - self.rho * along
        adding = 2 * max(0.0, inside) / (k * (n - k + 1))
        anyhow = 2 * ((k - 1) / k + self.rho) / k  # of any item, since |V| < k when one is added
        return MARGIN * (1 / k**2 + max(dropping, min(adding, anyhow)))

    def apply(self, decision: Any, training: Training) -> None:
        training.select_examples(decision)

    def alternatives(self) -> dict[str, Sample]:
        """Return the baselines: greedy with and without exchanges, most relevant examples, random.

        The most relevant examples are returned with and without near-duplicates.
        """
        k, numbers = self.num_chosen, (self.pairs, self.relevance, self.rho)
        greedy = greedy_matching(*numbers, k)
        chosen = {
            "greedy_and_exchange": exchanged(greedy, *numbers),
            "greedy": greedy,
            "deduplicate_then_top": deduplicated_top_relevance(self.pairs, self.relevance, k),
            "top_relevance": top_relevance(self.relevance, k),
            "random": random_choice(len(self.labels), k, self.seed),
        }
        return {name: self.sample_of(indices) for name, indices in chosen.items()}

    def facts(self) -> JsonObject:
        return {**super().facts(), "target_agreement": self.rho}


def unit_rows(gradients: Array, ids: Sequence[int] | None = None, what: str = "target") -> Array:
    """Scale each row of a matrix of gradients to length 1, in float32.

    Raises:
        ValueError: the array is not a matrix, the number of rows differs from the number of ids, or
            a row is zero or not finite.
    """
    rows = np.asarray(gradients, dtype=np.float32)
    if rows.ndim != 2 or (ids is not None and len(ids) != len(rows)):
        wanted = "" if ids is None else f" for {len(ids)} ids"
        raise InputError(
            "quantum.gradients_wrong_shape", role=what, shape=rows.shape, wanted=wanted
        )
    lengths = np.linalg.norm(rows, axis=1)
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(wrong):
        named = [int(ids[i]) if ids is not None else int(i) for i in wrong[:5]]
        how = phrase("quantum.gradient_zero_or_not_finite")
        raise InputError(
            "quantum.unusable_gradients",
            count=len(wrong),
            role=what,
            problem=how,
            examples=named,
        )
    return rows / lengths[:, None]


def target_mean(units: Array, *, is_sample: bool) -> tuple[Array, float]:
    """Return direction (d,) and length of the mean of unit gradients.

    The mean of a sample is too long: its expected square is rho^2 + (1 - rho^2) / m. So for a
    sample rho is estimated from the cosines between different rows. If the rows are the whole
    population (`is_sample` is false), rho is the length of the mean.

    Raises:
        ValueError: the rows have no common direction, or are a sample of fewer than 2.
    """
    m = len(units)
    if is_sample and m < 2:
        raise InputError("quantum.too_few_target_examples", count=m)
    mean = units.mean(axis=0, dtype=np.float64)
    square = float(mean @ mean)
    if is_sample:
        square = (square * m - 1) / (m - 1)
    if square <= 0:
        raise InputError("quantum.no_common_target_direction", count=m)
    return mean / np.linalg.norm(mean), float(np.sqrt(square))
