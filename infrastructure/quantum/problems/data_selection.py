"""Which examples to train on: the k whose mean gradient is nearest to the target's.

u_i is the gradient of example i scaled to length 1 (sketched, of the parameters that train), t the
direction of the mean of the target's, rho its length. For a set S of k examples

    E(S) = || (1/k) sum_S u_i - rho t ||^2 = x'Kx / k^2 - 2 rho r'x / k + rho^2,   K = UU', r = Ut,

which no weight has to be chosen for, and 0 bounds from below.

What was measured (tiny models, pools made of duplicates, off-topic rows and noise; the longer story
is in benchmarks/results/quantum_step.md): of a dirty pool, what is chosen so for clean rows trains
better than a random choice and, by more, than the most relevant one: nine tenths a little better
than all of it at the same number of steps, a half as well. A better optimum than the greedy one
helped with a tenth of a dirty pool and did harm with a tenth of a clean one. On clean data, or for
the pool itself, nothing is gained. So it answers "train on k examples as well as k can".
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.quantum.arrays import Array
from infrastructure.quantum.problems.choice import MARGIN, Choice
from infrastructure.quantum.problems.problem import Sample, Training
from infrastructure.quantum.problems.selection_baselines import (
    deduplicated_top_relevance,
    exchanged,
    greedy_matching,
    random_choice,
    top_relevance,
)


class DataSelection(Choice):
    """Choose `num_chosen` examples whose mean gradient matches the target's.

    Args:
        ids: of the n candidates, as the training data numbers them; they label the variables.
        gradients: (n, d) of the candidates, any scale; d of 4096 or more where they are sketched.
        num_chosen: k.
        target: (m, d) gradients of the examples that the model is to do well on, m of 2 or more
            (held-out rows); None: the candidates themselves, for a subset that stands for them.
        seed: of the random choice that the answer is compared with.

    Raises:
        ValueError: shapes do not fit, a gradient is zero or not finite, or the target's gradients
            have no direction in common, so that there is nothing to match.
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
        """As in `Choice`, with a bound of this objective that is several times smaller.

        With V the sum over S, dropping costs, in the mean over S,
        (-2 |V|^2 / k^2 + 2 rho t'V / k) / |S| + 1 / k^2, and adding, in the mean over the n - |S|
        others whose sum is G - V, 1 / k^2 + 2 (G - V)'(V / k - rho t) / (k (n - |S|)). The cheapest
        flip costs at most the mean; both are largest where V points along t and, for adding, along
        G too: rho^2 / (2 |S|) and (|G| / k + rho)^2 k / 4 - rho t'G inside.
        """
        n, k = len(self.labels), self.num_chosen
        length, along = self._total
        dropping = self.rho**2 / (2 * (k + 1))
        inside = (length / k + self.rho) ** 2 * k / 4 - self.rho * along
        adding = 2 * max(0.0, inside) / (k * (n - k + 1))
        anyhow = 2 * ((k - 1) / k + self.rho) / k  # of any one, since |V| < k when one is added
        return MARGIN * (1 / k**2 + max(dropping, min(adding, anyhow)))

    def apply(self, decision: Any, training: Training) -> None:
        training.select_examples(decision)

    def alternatives(self) -> dict[str, Sample]:
        """Greedy matching with exchanges and as it is, top relevance without duplicates, random."""
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
    """Each row at length 1, float32.

    Raises:
        ValueError: no matrix, a row for something else than one id, or a row without direction.
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
    """Direction (d,) and length of the mean of unit gradients.

    The length of a sample's mean is too long by what the sample is short: its square is rho^2 +
    (1 - rho^2) / m. So rho is taken from the cosines between different rows. Where the rows are all
    there is (not `is_sample`), it is the length as it is.

    Raises:
        ValueError: the rows have no direction in common, or are a sample of fewer than 2.
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
