"""Attention of short examples by products is causal attention of each example alone."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from infrastructure.features.cpu_kernels import short_attention
from infrastructure.features.cpu_kernels.short_attention import (
    MAX_LENGTH,
    PRODUCTS,
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
    assert [number_of_products(count) for count in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 12]


def test_a_product_has_as_many_scores_as_the_cache_holds() -> None:
    shapes = [(group.size, len(group.others)) for group in grouped([16] * 70 + [200] * 2, 16)]
    assert shapes == [(16, 64), (16, 8), (208, 1), (208, 1)]  # 16,384 scores, and never none


def test_an_example_is_read_in_place_if_its_padding_is_in_the_row() -> None:
    [first, middle] = grouped([2, 6], 4)
    assert (first.rows, first.own, first.examples) == (slice(0, 4), slice(2), slice(0, 2))
    assert isinstance(middle.rows, torch.Tensor)
    assert middle.rows.tolist() == [2, 3, 4, 5, 6, 7, 7, 7]
    assert grouped([6, 4], 4)[1].rows == slice(6, 10)


@pytest.mark.parametrize(
    ("changed", "is_taken"),
    [
        ({}, True),
        ({"step": 1}, False),
        ({"max_length": 512}, True),
        ({"max_length": 513}, False),
        ({"step": 100, "max_length": 501}, False),  # 600 with its padding
        ({"dropout": 0.1}, False),
        ({"window": 16}, False),
        ({"compiles": False}, False),
    ],
)
def test_products_take_short_padded_examples_without_dropout_and_window(
    changed: dict[str, Any], is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"step": 16, "max_length": 64, "dropout": 0.0, "window": None, "compiles": True}
    given |= changed
    monkeypatch.setattr(short_attention, "compiles_kernels", lambda value: given["compiles"])
    mask = torch.zeros(1, given["step"], given["max_length"])
    taken = PRODUCTS.takes(torch.zeros(1), mask, given["dropout"], given["window"])
    assert taken == is_taken


def test_the_form_of_products_is_recorded_where_they_may_be_used() -> None:
    form = "products of up to 16384 scores up to 512 tokens"
    cpu, half = torch.device("cpu"), torch.bfloat16
    assert PRODUCTS.form(cpu, half, 16) == form
    for given in ((cpu, half, 1), (torch.device("meta"), half, 16), (cpu, torch.float32, 16)):
        assert PRODUCTS.form(*given) == ""


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
