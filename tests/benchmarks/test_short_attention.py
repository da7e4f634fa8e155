"""Both forms of the attention that is timed are the same attention."""

import torch

from benchmarks.short_attention import by_flash, by_products, heads_of


def test_both_give_the_same() -> None:
    lengths = [64, 64]
    gradients = []
    for attention in (by_products, by_flash):
        heads = heads_of(sum(lengths))
        with torch.autocast("cpu", torch.bfloat16):
            output = attention(heads, lengths)
        output.backward(torch.ones_like(output))
        gradients.append((output.float(), *(part.grad.float() for part in heads)))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
