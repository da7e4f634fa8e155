"""Attention of short examples by products is causal attention of each example alone."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from infrastructure.features.cpu_kernels import short_attention
from infrastructure.features.cpu_kernels.short_attention import (
    MAX_LENGTH,
    ShortAttention,
    grouped,
    number_of_products,
)
from tests.models.test_rounded_rows import LAYOUTS, assert_same, packed, packing_model

LENGTHS = [5, 1, 9, 3]


def heads(widths: tuple[int, int, int] = (8, 8, 8)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 4, sum(LENGTHS), width) for width in widths]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def mask() -> torch.Tensor:
    example = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    return (example[:, None] == example) & torch.ones(len(example), len(example)).tril().bool()


def attend(given: list[torch.Tensor], step: int, scaling: Any, dtype: torch.dtype) -> torch.Tensor:
    output: torch.Tensor = ShortAttention.apply(*given, grouped(LENGTHS, step), scaling, dtype)  # type: ignore[no-untyped-call]
    return output


@pytest.mark.parametrize("step", [1, 2, 4, 16])
@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("widths", [(8, 8, 8), (8, 8, 6)])
def test_it_is_masked_attention(
    step: int, scaling: float | None, widths: tuple[int, int, int]
) -> None:
    given = heads(widths)
    expected = F.scaled_dot_product_attention(*given, attn_mask=mask(), scale=scaling)
    actual = attend(given, step, scaling, torch.float32)
    torch.testing.assert_close(actual, expected.transpose(1, 2), rtol=1e-5, atol=1e-6)
    weights = torch.randn(actual.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        torch.autograd.grad((actual * weights).sum(), given),
        torch.autograd.grad((expected.transpose(1, 2) * weights).sum(), given),
        rtol=1e-5,
        atol=1e-5,
    )


def test_in_bf16_it_errs_no_more_than_flash_attention() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 4, 48, 32).bfloat16().requires_grad_() for _ in range(3)]
    exact = [head.detach().double().requires_grad_() for head in given]
    weights = torch.randn(1, 48, 4, 32)

    def gradients(output: torch.Tensor, of: list[torch.Tensor]) -> list[torch.Tensor]:
        total = (output * weights.to(output.dtype)).sum()
        return [gradient.double() for gradient in torch.autograd.grad(total, of)]

    def error(actual: list[torch.Tensor]) -> float:
        pairs = zip(actual, expected, strict=True)
        return max(float((one - other).norm() / other.norm()) for one, other in pairs)

    flash = F.scaled_dot_product_attention(*given, is_causal=True).transpose(1, 2)
    expected = gradients(
        F.scaled_dot_product_attention(*exact, is_causal=True).transpose(1, 2), exact
    )
    with torch.autocast("cpu", torch.bfloat16):
        actual: torch.Tensor = ShortAttention.apply(*given, grouped([48], 16), None, torch.bfloat16)  # type: ignore[no-untyped-call]
    assert actual.dtype is torch.bfloat16
    assert error(gradients(actual, given)) <= 1.5 * error(gradients(flash, given)) < 0.02


def test_examples_of_one_size_share_their_products() -> None:
    alone, shared = grouped([6, 3, 4, 2], 4)
    assert (alone.size, shared.size) == (8, 4)
    assert (alone.rows, alone.own, alone.examples) == (slice(0, 8), slice(6), slice(0, 6))
    assert isinstance(shared.rows, torch.Tensor)
    assert shared.rows[:12].tolist() == [6, 7, 8, 9, 9, 10, 11, 12, 13, 14, 14, 14]
    assert (~shared.others).sum(1).tolist() == [3, 4, 2, 0]  # four products, as for four examples
    assert isinstance(shared.examples, torch.Tensor)
    assert shared.examples.tolist() == list(range(6, 15))


def test_few_numbers_of_products() -> None:
    assert len({number_of_products(count) for count in range(1, 65)}) == 18


def test_the_longest_example_fits() -> None:
    given = [torch.zeros(1, 1, MAX_LENGTH, 2) for _ in range(3)]
    output: torch.Tensor = ShortAttention.apply(
        *given, grouped([MAX_LENGTH], 16), None, torch.float32
    )  # type: ignore[no-untyped-call]
    assert output.shape == (1, MAX_LENGTH, 1, 2)


@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_short_examples_by_products(
    architecture: str, lengths: list[int], checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for half precision on a CPU; here in fp32, so that it can be compared."""
    applied: list[int] = []
    products = short_attention.PRODUCTS.attend

    def count(*given: Any) -> torch.Tensor:
        applied.append(1)
        return products(*given)

    monkeypatch.setattr(short_attention, "compiles_kernels", lambda value: True)
    monkeypatch.setattr(short_attention.PRODUCTS, "attend", count)
    assert_same(packing_model(architecture, checkpointing), lengths, packed)
    assert applied, "never for exact lengths"
