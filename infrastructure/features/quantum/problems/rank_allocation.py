"""The choice of the rank-1 LoRA components to keep, by a second-order model of the loss.

Component i has a gate z_i = 1. Without the components in R the loss changes by

    dL(R) = -sum_R dL/dz_i + 1/2 sum_RR Q_ij,      Q the sampled Fisher of the gates.

Measured on a tiny model with 448 gates: the full Q predicts the effect of random removals better
than its diagonal does (0.986 against 0.979), but its optimum is worse: if half is kept, the loss is
3.094 against 2.991. (The choice with the lowest predicted loss is the one whose prediction errors
are largest.) So prefer the first baseline, which sorts by the diagonal. The rest exists for
comparison.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.features.quantum.problems.choice import Choice
from infrastructure.features.quantum.problems.problem import Sample, Training
from infrastructure.features.quantum.solving.arrays import Array


class RankAllocation(Choice):
    """The problem of choosing `num_kept` of all LoRA components to keep.

    Args:
        ranks: number of components of each LoRA module, by name. n is their sum, and gates are in
            this order.
        gradients: dL/dz, (n,), of the mean loss per token.
        fisher: Q, (n, n): `sampled_fisher` of gate gradients with labels drawn from the model.
        num_kept: from 1 to n.
        seed: seed of the random baseline.

    Raises:
        ValueError: the shapes do not match, or a number is not finite.
    """

    name: ClassVar[str] = "rank_allocation"

    def __init__(
        self,
        ranks: Mapping[str, int],
        gradients: Array,
        fisher: Array,
        num_kept: int,
        *,
        seed: int = 0,
    ) -> None:
        self.components = [(module, i) for module, rank in ranks.items() for i in range(rank)]
        self.gradients = np.asarray(gradients, dtype=np.float64)
        fisher = np.asarray(fisher)
        n = len(self.components)
        if self.gradients.shape != (n,) or fisher.shape != (n, n):
            shapes = f"{self.gradients.shape} and {fisher.shape}"
            raise InputError("quantum.rank_allocation_shapes_differ", count=n, shapes=shapes)
        self.seed = seed
        rows = fisher.sum(axis=1, dtype=np.float64)
        super().__init__(
            [f"{module}:{i}" for module, i in self.components],
            num_kept,
            self.gradients - rows + fisher.diagonal() / 2,
            fisher,
            offset=float(rows.sum() / 2 - self.gradients.sum()),
        )

    def decode(self, sample: Sample) -> dict[str, list[int]]:
        """Return the indices of the kept components of each module; every module is listed."""
        kept: dict[str, list[int]] = {module: [] for module, _ in self.components}
        for i in self.indices(self.repair(sample)):
            module, component = self.components[i]
            kept[module].append(component)
        return kept

    def apply(self, decision: Any, training: Training) -> None:
        training.keep_components(decision)

    def alternatives(self) -> dict[str, Sample]:
        """Return the baselines: diagonal Fisher, sensitivity |dL/dz|, random.

        Sensitivity is the criterion of AdaLoRA (arXiv 2303.10512).
        """
        k, n = self.num_chosen, len(self.components)
        chosen = {
            "diagonal_fisher": largest(self.pairs.diagonal(), k),
            "sensitivity": largest(np.abs(self.gradients), k),
            "random": np.random.default_rng(self.seed).permutation(n)[:k],
        }
        return {name: self.sample_of(indices) for name, indices in chosen.items()}


def largest(worth: Array, num_kept: int) -> Array:
    """Return the indices of the `num_kept` largest values; of equal values, the first ones."""
    return np.argsort(-worth, kind="stable")[:num_kept]
