"""Both forms of the attention that is timed are the same attention."""

import pytest
import torch

from benchmarks.short_attention import by_flash, by_products, heads_of, lengths_of_row, page


def test_rows_have_about_as_many_tokens() -> None:
    assert [sum(lengths_of_row(length)) for length in (64, 512, 1024)] == [1280, 1536, 1024]


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


def test_the_page_has_a_line_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.short_attention.LENGTHS", (64, 576))  # beyond the mask, too
    monkeypatch.setattr("benchmarks.short_attention.TOKENS_OF_ROW", 64)
    text = page(1)
    assert "| 64 | 1 |" in text
    assert "| 576 | 1 |" in text
