"""The page that compares two ways to prepare rows."""

import pytest

from benchmarks.data_preparation import Figures, page, ratios


def test_imports_are_in_the_memory_and_shown_apart() -> None:
    figures = {"temper": Figures(10.0, 64, 300, 500), "trl": Figures(40.0, 64, 600, 1000)}
    assert ratios(figures) == pytest.approx((4.0, 0.5, 0.5))
    assert "4.00 times the rows a second" in page(figures, 1000)
    assert "| Temper | 100 |" in page(figures, 1000)
