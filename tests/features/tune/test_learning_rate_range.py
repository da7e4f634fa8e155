"""The range test on a problem whose highest stable rate is known: a parabola diverges above 2."""

import math

import pytest

from infrastructure.features.tune.learning_rate_range import range_test


class Parabola:
    """f(x) = x² / 2, by gradient descent: stable below a rate of 2."""

    def __init__(self) -> None:
        self.x = 1.0

    def loss_at(self, rate: float) -> float:
        loss = self.x**2 / 2
        self.x -= rate * self.x
        return loss


def test_the_explosion_is_found_and_the_suggestion_stays_a_tenth_below() -> None:
    found = range_test(Parabola().loss_at, lowest=1e-4, highest=100.0, num_steps=200)
    assert found.explodes_at is not None
    assert found.explodes_at > 2.0
    assert found.suggested is not None
    assert 1e-3 < found.suggested <= found.explodes_at / 10
    assert "tune.learning_rate_suggested" in found.lines()[0]


def test_a_loss_that_is_no_number_ends_the_test() -> None:
    rates: list[float] = []

    def loss_at(rate: float) -> float:
        rates.append(rate)
        return math.nan if rate > 1e-3 else 1.0 - rate

    found = range_test(loss_at)
    assert found.explodes_at == pytest.approx(rates[-1])
    assert all(rate <= 1e-3 for rate in found.rates)


def test_a_loss_that_never_falls_suggests_nothing() -> None:
    found = range_test(lambda rate: 1.0 + rate)
    assert found.suggested is None
    assert "tune.loss_fell_at_no_rate" in found.lines()[0]
