"""Which blocks train until the next decision: the loss after one step, to second order.

Block i proposes the move d_i. If the blocks in S move, the loss changes by

    dL(S) = sum_S g.d_i + 1/2 sum_SS d_i' C d_j,

with C the Fisher matrix of labels sampled from the model (the empirical Fisher, from the data's
own labels, is no curvature: Kunstner et al. 2019, arXiv 1905.12558).

What was measured (tiny models): one step is predicted very well (correlation 0.99), but not which
blocks train best until the next decision; the quadratic term is 2 to 10 % of the linear one, so
that the optimum is nearly always the k largest decreases, and as good as the k largest gradient
norms, which need no second backward pass. It is here to be compared, not because it is better.
A budget of costs (each block that the backward pass reaches costs, chosen or not) was tried, too:
asked for the best ratio it chose nearly all blocks, at 23 % above training all without asking.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.quantum.arrays import Array
from infrastructure.quantum.problems.block_baselines import (
    cyclic_blocks,
    largest_decrease,
    largest_gradient_norm,
    random_blocks,
    top_blocks,
)
from infrastructure.quantum.problems.choice import Choice
from infrastructure.quantum.problems.problem import Sample, Training


class BlockSelection(Choice):
    """Choose `num_chosen` of N blocks.

    Args:
        blocks: names, from the input up.
        linear: g.d_i, (N,); below zero where the step lowers the loss.
        curvature: d_i' C d_j, (N, N).
        num_chosen: k.
        gradient_norms: (N,), of the blocks.
        number: decisions made before this one; the random and the cyclic answer go on from there.

    Raises:
        ValueError: shapes that do not fit, or numbers that are not finite.
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
        """Gradient norm, first-order decrease, random (LISA), cyclic (BAdam), the top ones."""
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
    """d_i' C d_j of the loss per token, (N, N), from gradients with labels drawn from the model.

    Such gradients of different tokens are uncorrelated, so that the square of a sum over tokens is
    the sum of their squares, however the tokens lie in micro-batches.

    Args:
        dots: (B, N), the summed gradient of each micro-batch (or example) times each d_i; for gates
            the gradient itself.
        num_tokens: supervised, in all B.
    """
    dots = np.asarray(dots, dtype=np.float64)
    return dots.T @ dots / num_tokens


def symmetric(matrix: Array) -> Array:
    """The matrix in float64, its two halves averaged.

    Raises:
        ValueError: it is not square.
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError("quantum.curvature_not_square", shape=matrix.shape)
    return (matrix + matrix.T) / 2
