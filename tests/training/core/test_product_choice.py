"""One product in both formats says whether bf16 is worth trying."""

from collections.abc import Iterator

import pytest
import torch

from infrastructure.training.core import product_choice
from infrastructure.training.core.product_choice import (
    measured_choice,
    product_seconds,
    threads_restored,
)


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    with threads_restored():
        torch.set_num_threads(4)
        yield


def test_a_product_is_measured_in_both_formats_with_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    multiplied: list[tuple[str, int]] = []
    real = torch.mm

    def watched(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert rows.dtype == weight.dtype
        multiplied.append((str(rows.dtype), torch.get_num_threads()))
        return real(rows, weight)

    monkeypatch.setattr(torch, "mm", watched)
    seconds = product_seconds()
    assert set(seconds) == {"bf16", "fp32"}
    assert all(0 < each < 1 for each in seconds.values())
    assert multiplied == [("torch.bfloat16", 1), ("torch.float32", 1)] * 11
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("in_fp32", "is_chosen"), [(0.79, True), (0.81, False)])
def test_fp32_has_to_be_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, in_fp32: float, is_chosen: bool
) -> None:
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 1.0, "fp32": in_fp32})
    assert (measured_choice() is not None) == is_chosen
