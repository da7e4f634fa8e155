"""Causal attention for short packed examples in bf16 on a CPU, by batched matrix products.

For examples of a few hundred tokens, PyTorch's flash attention spends most of its backward pass on
work other than matrix products, and recomputes the attention probabilities. This implementation
consists of matrix products and stores the probabilities for the backward pass. Compared with flash
attention, it takes 50 to 80% of the time up to 512 tokens, and twice the time at 1,024 tokens
(`python -m benchmarks.short_attention`).

Scores and softmax are fp32, as in flash attention. Products with the probabilities use the format
that the model computes in.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from infrastructure.core.integers import ceil_div
from infrastructure.models.packed_attention import (
    HALF_PRECISION,
    compiles_kernels,
    compute_format,
    segment_lengths,
)

MAX_LENGTH = 512  # of an example, in tokens
MAX_PRODUCT = 1 << 14  # scores per head in one product; more would not fit the cache
_known_groups = WeakTensorKeyDictionary()  # an entry is dropped with its mask


@dataclass(frozen=True)
class PaddedGroup:
    """A group of packed examples that are padded to one size and computed in one batched product.

    Attributes:
        size: the padded length of each example.
        rows: positions in the packed row that the products read, (n * size,) int64, or a slice for
            a single example.
        own: positions in the products that belong to an example rather than to padding, in the same
            form as `rows`.
        examples: positions in the packed row that correspond to `own`.
        others: mask of the padding in the products, (n, size) bool.
    """

    size: int
    rows: torch.Tensor | slice
    own: torch.Tensor | slice
    examples: torch.Tensor | slice
    others: torch.Tensor


class ShortAttention(torch.autograd.Function):
    """Causal attention inside each example of a packed row, as an autograd function.

    Kernels are compiled for each shape, so examples are padded to a few sizes. Padding does not
    change the result: no example attends to it, and its output is dropped.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        groups: list[PaddedGroup],
        scaling: float | None,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Compute the attention output of each token.

        Args:
            query: (1, H, T, D). `key` has the same shape, and `value` is (1, H, T, E).
            groups: the groups of all examples in the packed row.
            scaling: factor of the scores. None: 1 / sqrt(D).
            dtype: format of the products with the probabilities, and of the output.

        Returns:
            (1, T, H, E).
        """
        scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
        with torch.autocast("cpu", enabled=False):
            scored_query, scored_key = query[0].float(), key[0].float()
            values = value[0].to(dtype)
            output = values.new_empty(values.shape[1], values.shape[0], values.shape[2])
            kept = []
            for group in groups:
                scores = torch.baddbmm(
                    causal_bias(group.size),
                    taken(scored_query, group),
                    taken(scored_key, group).transpose(1, 2),
                    alpha=scale,
                )
                weights = scores.softmax(-1).to(dtype)
                weights.view(-1, *group.others.shape, group.size)[:, group.others] = 0
                put(output.transpose(0, 1), group, torch.bmm(weights, taken(values, group)))
                kept.append(weights)
            ctx.save_for_backward(query[0].to(dtype), key[0].to(dtype), values, *kept)
        ctx.groups, ctx.scale = groups, scale
        ctx.formats = query.dtype, key.dtype, value.dtype
        return output[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        grad = grad_output[0].to(value.dtype).transpose(0, 1)
        gradients = [torch.empty_like(heads) for heads in (query, key, value)]
        for group, weights in zip(ctx.groups, kept, strict=True):
            of_output = taken(grad, group)
            of_weights = torch.bmm(of_output, taken(value, group).transpose(1, 2))
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_scores *= ctx.scale
            products = (
                torch.bmm(of_scores, taken(key, group)),
                torch.bmm(of_scores.transpose(1, 2), taken(query, group)),
                torch.bmm(weights.transpose(1, 2), of_output),
            )
            for gradient, product in zip(gradients, products, strict=True):
                put(gradient, group, product)
        given = zip(gradients, ctx.formats, strict=True)
        return (*(gradient[None].to(dtype) for gradient, dtype in given), None, None, None)


def taken(heads: torch.Tensor, group: PaddedGroup) -> torch.Tensor:
    """Return the rows of `heads` (H, T, D) that the group's products read, as (H * n, size, D)."""
    if isinstance(group.rows, slice):
        return heads[:, group.rows]
    return heads.index_select(1, group.rows).view(-1, group.size, heads.shape[-1])


def put(heads: torch.Tensor, group: PaddedGroup, products: torch.Tensor) -> None:
    """Copy the rows of `products` (H * n, size, D) that are not padding to `heads` (H, T, D)."""
    if isinstance(group.own, slice):
        heads[:, group.examples] = products[:, group.own]
        return
    rows = products.view(len(heads), -1, products.shape[-1]).index_select(1, group.own)
    heads[:, group.examples] = rows


def grouped(lengths: list[int], step: int) -> list[PaddedGroup]:
    """Group the examples of a packed row by length, rounded up to a multiple of `step`.

    Padding positions after the end of the packed row are clamped to its last token.
    """
    total = sum(lengths)
    starts = [0, *accumulate(lengths)]
    members: dict[int, list[tuple[int, int]]] = {}
    for start, length in zip(starts, lengths, strict=False):
        members.setdefault(ceil_div(length, step) * step, []).append((start, length))
    return [
        _group(size, part, total)
        for size, examples in members.items()
        for part in _pieces(examples, max(1, MAX_PRODUCT // size**2))
    ]


def _pieces(examples: list[tuple[int, int]], most: int) -> Iterator[list[tuple[int, int]]]:
    for start in range(0, len(examples), most):
        yield examples[start : start + most]


def _group(size: int, examples: list[tuple[int, int]], total: int) -> PaddedGroup:
    starts, lengths = (torch.tensor(column) for column in zip(*examples, strict=True))
    if len(examples) == 1 and examples[0][0] + size <= total:
        [(start, length)] = examples
        others = torch.arange(size)[None] >= length
        return PaddedGroup(
            size, slice(start, start + size), slice(length), slice(start, start + length), others
        )
    missing = number_of_products(len(examples)) - len(examples)
    starts = torch.cat([starts, starts.new_zeros(missing)])
    lengths = torch.cat([lengths, lengths.new_zeros(missing)])
    places = starts[:, None] + torch.arange(size)
    others = torch.arange(size) >= lengths[:, None]
    own = (~others).flatten()
    rows = places.clamp(max=total - 1).flatten()
    return PaddedGroup(size, rows, own.nonzero().squeeze(1), rows[own], others)


def number_of_products(count: int) -> int:
    """Round the number of examples up, so that few different shapes occur."""
    return count if count <= 2 else ceil_div(count, 4) * 4


@cache
def _bias() -> torch.Tensor:
    return torch.full((1, MAX_LENGTH, MAX_LENGTH), -torch.inf).triu(1)


def causal_bias(length: int) -> torch.Tensor:
    """Return a causal mask (1, length, length) fp32: minus infinity for later columns, else 0."""
    return _bias()[:, :length, :length]


class Products:
    """Attention to packed rows by `ShortAttention`; implements `packed_attention.PackedWay`."""

    def takes(
        self, value: torch.Tensor, mask: torch.Tensor, dropout: float, window: int | None
    ) -> bool:
        step, max_length = mask.shape[1:3]
        return (
            step > 1
            and compiles_kernels(value)
            and ceil_div(max_length, step) * step <= MAX_LENGTH
            and dropout == 0.0
            and window is None
        )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        shared = query.shape[1] // key.shape[1]
        if shared > 1:
            key, value = (heads.repeat_interleave(shared, dim=1) for heads in (key, value))
        groups, dtype = product_groups(mask), compute_format(value)
        output: torch.Tensor = ShortAttention.apply(query, key, value, groups, scaling, dtype)
        return output

    def form(self, device: torch.device, dtype: torch.dtype, length_step: int) -> str:
        if length_step == 1 or device.type != "cpu" or dtype not in HALF_PRECISION:
            return ""
        return f"products of up to {MAX_PRODUCT} scores up to {MAX_LENGTH} tokens"


def product_groups(mask: torch.Tensor) -> list[PaddedGroup]:
    """Return the groups of the examples in a segment mask, cached for each mask."""
    if mask not in _known_groups:
        _known_groups[mask] = grouped(segment_lengths(mask), mask.shape[1])
    groups: list[PaddedGroup] = _known_groups[mask]
    return groups


PRODUCTS = Products()
