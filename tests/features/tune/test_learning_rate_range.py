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
    limit = f"tune.loss_explodes_at_rate(rate={found.explodes_at})"
    line = f"tune.learning_rate_suggested(suggested={found.suggested}, limit={limit})"
    assert found.lines() == [line]


def test_rates_rise_alike_and_losses_are_smoothed() -> None:
    losses = [4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.75]
    given = iter(losses)
    found = range_test(lambda rate: next(given), lowest=0.5, highest=256.0, num_steps=10)
    assert found.rates == pytest.approx([2.0**n for n in range(-1, 9)])
    smoothed = []
    for count in range(1, 11):
        weights = [0.9 ** (count - 1 - n) for n in range(count)]
        pairs = zip(weights, losses, strict=False)
        smoothed.append(sum(weight * loss for weight, loss in pairs) / sum(weights))
    assert found.losses == pytest.approx(smoothed)
    slopes = {n: smoothed[n + 1] - smoothed[n - 1] for n in range(5, 9)}
    assert found.suggested == found.rates[min(slopes, key=lambda n: slopes[n])] == 2.0**6
    assert found.explodes_at is None
    assert found.lines() == ["tune.learning_rate_suggested(suggested=64.0, limit=no explosion)"]


@pytest.mark.parametrize(("last", "explodes"), [(9.5, False), (10.0, True), (math.inf, True)])
def test_a_smoothed_loss_of_more_than_twice_the_lowest_is_an_explosion(
    last: float, explodes: bool
) -> None:
    given = iter([1.0] * 19 + [last])
    found = range_test(lambda rate: next(given), num_steps=20)
    assert (found.explodes_at, len(found.rates)) == ((1.0, 19) if explodes else (None, 20))


def test_a_rate_is_a_tenth_of_that_of_the_explosion_at_most() -> None:
    given = iter([*([1.0] * 13), 0.1, 0.1, 0.1, math.inf])
    found = range_test(lambda rate: next(given), lowest=1.0, highest=2.0**16, num_steps=17)
    assert (found.explodes_at, found.suggested) == (2.0**16, 2.0**16 / 10)


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
