"""Causal attention of short examples in bf16 on a CPU, by matrix products.

PyTorch's flash attention spends most of its backward pass on anything but products where examples
have a few hundred tokens. Here the products do the work, and the probabilities are kept for the
backward pass, which flash attention computes again: half its time up to 256 tokens, two thirds
at 512, and slower beyond (`python -m benchmarks.short_attention`).

Scores and softmax are fp32, as in flash attention; products with the probabilities have the format
that the model computes in.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from infrastructure.core.integers import ceil_div

MAX_LENGTH = 512  # of an example, in tokens


class ShortAttention(torch.autograd.Function):
    """Causal attention inside each example of a packed row.

    Kernels are made for each shape, so the products have lengths that repeat. What stands in a
    product beside its example is seen by nothing: other tokens are masked, and what they see
    themselves is dropped.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: list[int],
        step: int,
        scaling: float | None,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The output of each token's attention.

        Args:
            query: (1, H, T, D), as `key`; `value` is (1, H, T, E).
            lengths: of the examples, whose sum is T.
            step: lengths in products are multiples of it, as far as the row goes.
            scaling: of the scores; None: one by the square root of D.
            dtype: of the products with the probabilities.

        Returns:
            (1, T, H, E), of `dtype`.
        """
        scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
        with torch.autocast("cpu", enabled=False):
            scored_query, scored_key = query[0].float(), key[0].float()
            values = value[0].to(dtype)
            output = values.new_empty(values.shape[1], values.shape[0], values.shape[2])
            kept = []
            for span in spans(lengths, step):
                rows, own = span.rows, span.own
                scores = torch.baddbmm(
                    causal_bias(span.size),
                    scored_query[:, rows],
                    scored_key[:, rows].transpose(1, 2),
                    alpha=scale,
                )
                scores[..., : own.start] = -torch.inf
                weights = scores.softmax(-1).to(dtype)
                weights[:, : own.start] = weights[:, own.stop :] = 0
                attended = torch.bmm(weights, values[:, rows])
                output[span.example] = attended[:, own].transpose(0, 1)
                kept.append(weights)
            ctx.save_for_backward(query[0].to(dtype), key[0].to(dtype), values, *kept)
        ctx.lengths, ctx.step, ctx.scale = lengths, step, scale
        ctx.formats = query.dtype, key.dtype, value.dtype
        return output[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        grad = grad_output[0].to(value.dtype).transpose(0, 1)
        gradients = [torch.empty_like(heads) for heads in (query, key, value)]
        for span, weights in zip(spans(ctx.lengths, ctx.step), kept, strict=True):
            rows = span.rows
            of_weights = torch.bmm(grad[:, rows], value[:, rows].transpose(1, 2))
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_scores *= ctx.scale
            products = (
                torch.bmm(of_scores, key[:, rows]),
                torch.bmm(of_scores.transpose(1, 2), query[:, rows]),
                torch.bmm(weights.transpose(1, 2), grad[:, rows]),
            )
            for gradient, product in zip(gradients, products, strict=True):
                gradient[:, span.example] = product[:, span.own]
        given = zip(gradients, ctx.formats, strict=True)
        return (*(gradient[None].to(dtype) for gradient, dtype in given), None, None, None, None)


@dataclass(frozen=True)
class Span:
    """The rows of a product, and where its example lies: from the first of them or a later one."""

    begin: int
    size: int
    start: int
    length: int

    @property
    def rows(self) -> slice:
        """Of the product."""
        return slice(self.begin, self.begin + self.size)

    @property
    def example(self) -> slice:
        """Its rows."""
        return slice(self.start, self.start + self.length)

    @property
    def own(self) -> slice:
        """The example's rows among those of the product."""
        offset = self.start - self.begin
        return slice(offset, offset + self.length)


def spans(lengths: list[int], step: int) -> Iterator[Span]:
    """Of each example. A product that would not end in the row begins earlier."""
    start, end = 0, sum(lengths)
    for length in lengths:
        size = min(ceil_div(length, step) * step, end)
        yield Span(min(start, end - size), size, start, length)
        start += length


@cache
def _bias() -> torch.Tensor:
    return torch.full((1, MAX_LENGTH, MAX_LENGTH), -torch.inf).triu(1)


def causal_bias(length: int) -> torch.Tensor:
    """(1, length, length) fp32: minus infinity for what is later than the row."""
    return _bias()[:, :length, :length]
