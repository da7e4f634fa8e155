"""Attention of short examples by products, beside PyTorch's flash attention, on a CPU in bf16.

    python -m benchmarks.short_attention [--rounds 30]

A packed row of about 1,300 tokens, six heads of 64, forward and backward. Both take turns, and a
ratio is of neighbouring turns. Longer examples than training gives to the products are measured
too: they say why it does not. Prints a table.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from unittest.mock import patch

import torch

from benchmarks.machine import environment, publish, sentence, table
from benchmarks.turns import interval
from infrastructure.features.cpu_kernels import short_attention
from infrastructure.models.packed_attention import by_segment, in_autocast_format
from infrastructure.optimization.size_grid import SEGMENT_STEP

LENGTHS = (64, 160, 256, 512, 1024)
TOKENS_OF_ROW = 1300
NUM_HEADS, HEAD_SIZE = 6, 64
NUM_WARMUP = 5

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def lengths_of_row(length: int) -> list[int]:
    return [length] * max(1, round(TOKENS_OF_ROW / length))


def heads_of(num_tokens: int) -> Heads:
    """Queries and keys as rotary embeddings leave them, in fp32; values as the layer computes."""
    torch.manual_seed(0)
    shape = (1, NUM_HEADS, num_tokens, HEAD_SIZE)
    query, key, value = (torch.randn(shape) for _ in range(3))
    made = (query, key, value.bfloat16())
    return tuple(heads.requires_grad_() for heads in made)  # type: ignore[return-value]


def by_products(heads: Heads, lengths: list[int]) -> torch.Tensor:
    groups = short_attention.grouped(lengths, SEGMENT_STEP)
    arguments = (*heads, groups, None, torch.bfloat16)
    output: torch.Tensor = short_attention.ShortAttention.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


def by_flash(heads: Heads, lengths: list[int]) -> torch.Tensor:
    return by_segment(*in_autocast_format(*heads), lengths, 0.0, None, None)


Attention = Callable[[Heads, list[int]], torch.Tensor]


def milliseconds(attention: Attention, heads: Heads, lengths: list[int]) -> float:
    """Of one forward and backward pass."""
    started = perf_counter()
    with torch.autocast("cpu", torch.bfloat16):
        output = attention(heads, lengths)
    output.backward(torch.ones_like(output))
    return 1000 * (perf_counter() - started)


def compare(length: int, num_rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of both in each round, products first."""
    lengths = lengths_of_row(length)
    heads = heads_of(sum(lengths))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(NUM_WARMUP + num_rounds):
        for taken, attention in zip(times, (by_products, by_flash), strict=True):
            taken.append(milliseconds(attention, heads, lengths))
    products, flash = (taken[NUM_WARMUP:] for taken in times)
    return products, flash


def row_of_table(length: int, num_rounds: int) -> tuple[str, ...]:
    products, flash = compare(length, num_rounds)
    ratios = [one / other for one, other in zip(products, flash, strict=True)]
    low, high = interval(ratios, median)
    return (
        str(length),
        str(len(lengths_of_row(length))),
        f"{median(products):.1f}",
        f"{median(flash):.1f}",
        f"{median(ratios):.2f} ({low:.2f} to {high:.2f})",
    )


def page(num_rounds: int) -> str:
    # the causal mask is made once, of the longest example that training gives to the products
    short_attention._bias.cache_clear()
    with patch.object(short_attention, "MAX_LENGTH", max(LENGTHS)):
        rows = [row_of_table(length, num_rounds) for length in LENGTHS]
    short_attention._bias.cache_clear()
    head = ("tokens of an example", "examples", "products, ms", "flash, ms", "products / flash")
    return (
        "# Attention of short examples in bf16 on a CPU\n\n"
        "`python -m benchmarks.short_attention`: forward and backward of a packed row, six heads of"
        f" 64; medians of {num_rounds} rounds by turns, and the 95% interval of the ratio's."
        f" Training takes the products for examples of up to {short_attention.MAX_LENGTH} tokens."
        f" {sentence(environment())}\n\n{table(head, rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    publish(page(arguments.rounds), arguments.write)


if __name__ == "__main__":
    main()
