"""The choice of the blocks that train until the next decision, by a second-order model of the loss.

Block i proposes the move d_i. If the blocks in S move, the loss changes by

    dL(S) = sum_S g.d_i + 1/2 sum_SS d_i' C d_j,

with the gradient g, and the Fisher matrix C of labels sampled from the model. (The empirical
Fisher, which uses the data's own labels, is not a curvature: Kunstner et al. 2019, arXiv
1905.12558.)

Measured on tiny models: the effect of one step is predicted very well (correlation 0.99), but not
which blocks train best until the next decision. The quadratic term is 2 to 10% of the linear one,
so the optimum is nearly always the k largest decreases. This choice is as good as the k largest
gradient norms, which need no second backward pass. The problem exists for comparison, not because
its choices are better. A cost budget that charges for every block that the backward pass reaches,
chosen or not, was also tried. It chose nearly all blocks, at a cost 23% above training all blocks
without a decision.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.features.quantum.problems.block_baselines import (
    cyclic_blocks,
    largest_decrease,
    largest_gradient_norm,
    random_blocks,
    top_blocks,
)
from infrastructure.features.quantum.problems.choice import Choice
from infrastructure.features.quantum.problems.problem import Sample, Training
from infrastructure.features.quantum.solving.arrays import Array


class BlockSelection(Choice):
    """The problem of choosing `num_chosen` of N blocks to train.

    Args:
        blocks: names, from the input up.
        linear: g.d_i, (N,); negative if the step lowers the loss.
        curvature: d_i' C d_j, (N, N).
        num_chosen: k.
        gradient_norms: (N,), one per block.
        seed: seed of the random baseline.
        number: number of earlier decisions; the random and the cyclic baseline depend on it.

    Raises:
        ValueError: the shapes do not match, or a number is not finite.
    """

    name: ClassVar[str] = "block_selection"

    def __init__(
        self,
        blocks: Sequence[str],
        linear: Array,
        curvature: Array,
        num_chosen: int,
        *,
        gradient_norms: Array,
        seed: int = 0,
        number: int = 0,
    ) -> None:
        curvature = symmetric(curvature)
        self.decrease = np.asarray(linear, dtype=np.float64)
        self.gradient_norms = np.asarray(gradient_norms, dtype=np.float64)
        self.seed, self.number = seed, number
        if not self.decrease.shape == self.gradient_norms.shape == curvature.shape[:1]:
            shapes = f"{self.decrease.shape}, {self.gradient_norms.shape} and {curvature.shape}"
            raise InputError("quantum.block_statistics_shapes_differ", shapes=shapes)
        own = self.decrease + curvature.diagonal() / 2
        super().__init__(blocks, num_chosen, own, curvature)

    def apply(self, decision: Any, training: Training) -> None:
        training.train_only(decision)

    def alternatives(self) -> dict[str, Sample]:
        """Return the baselines: gradient norm, first order, random (LISA), cyclic (BAdam), top."""
        n, k = len(self.labels), self.num_chosen
        chosen = {
            "gradient_norm": largest_gradient_norm(self.gradient_norms, k),
            "first_order": largest_decrease(self.decrease, k),
            "random": random_blocks(n, k, self.seed, self.number),
            "cyclic": cyclic_blocks(n, k, self.number),
            "top": top_blocks(n, k),
        }
        return {name: self.sample_of(indices) for name, indices in chosen.items()}


def sampled_fisher(dots: Array, num_tokens: float) -> Array:
    """Return the sampled Fisher matrix d_i' C d_j of the loss per token, (N, N).

    The gradients are for labels drawn from the model, which are uncorrelated between tokens. So the
    expected square of a sum over tokens is the sum of the expected squares, however the tokens are
    distributed over micro-batches.

    Args:
        dots: (B, N), the summed gradient of each micro-batch (or example) times each d_i.
        num_tokens: number of supervised tokens in all B.
    """
    dots = np.asarray(dots, dtype=np.float64)
    return dots.T @ dots / num_tokens


def symmetric(matrix: Array) -> Array:
    """Average a matrix with its transpose, in float64.

    Raises:
        ValueError: the matrix is not square.
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError("quantum.curvature_not_square", shape=matrix.shape)
    return (matrix + matrix.T) / 2
