"""One product in both formats says whether bf16 is worth trying."""

from collections.abc import Iterator
from types import SimpleNamespace

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


def test_the_shortest_of_the_later_products_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one of each loads its kernels; here it is the shortest by chance."""
    seconds = [0.0, 0.0, *(s for n in range(10) for s in (5.0 - n % 3, 9.0 - n % 4))]
    moments = iter([moment for each in seconds for moment in (0.0, each)])
    clock = SimpleNamespace(perf_counter=lambda: next(moments))
    monkeypatch.setattr(product_choice, "time", clock)
    monkeypatch.setattr(torch, "mm", lambda rows, weight: rows)
    assert product_seconds() == {"bf16": 3.0, "fp32": 6.0}


@pytest.mark.parametrize(("in_fp32", "is_chosen"), [(0.79, True), (0.81, False)])
def test_fp32_has_to_be_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, in_fp32: float, is_chosen: bool
) -> None:
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 1.0, "fp32": in_fp32})
    assert (measured_choice() is not None) == is_chosen
