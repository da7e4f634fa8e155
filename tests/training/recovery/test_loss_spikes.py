"""A spike is a loss far above those before it, once there are enough of them."""

import dataclasses
import math

import pytest

from infrastructure.training.recovery.loss_spikes import (
    NUM_ITEMS_NEEDED,
    NUM_NEEDED,
    NUM_REMEMBERED,
    BadLossError,
    BadStep,
    LossSpikeDetector,
)


def watching(losses: list[float]) -> LossSpikeDetector:
    watch = LossSpikeDetector(factor=3.0)
    assert not any(watch.observe(loss) for loss in losses)
    return watch


@pytest.mark.parametrize(
    ("losses", "num_items", "limit"),
    [
        ([], 8, math.inf),
        ([2.0], 8, 10.0),
        ([2.0], 7, math.inf),
        ([1.0] * 18 + [3.0], 8, 15.0),  # 19: the highest counts
        ([1.0] * 18 + [3.0], 7, math.inf),
        ([1.0] * 19 + [3.0], 7, 5.0),  # 20: the median counts
        ([1.0] * 19 + [0.0], 8, 5.0),
        ([0.0] * 20, 8, math.inf),  # no multiple of 0 is a limit
        ([9.0] * 26 + [1.0] * 25, 8, 25.0),  # of the last 50 as many are 9 as 1
        ([1000.0] * 50 + [1.0] * 50, 8, 21.0),  # 2% of the highest median above the median
    ],
)
def test_the_limit_is_five_times_the_usual_loss(
    losses: list[float], num_items: int, limit: float
) -> None:
    watch = LossSpikeDetector()
    for loss in losses:
        watch.observe(loss)
    assert watch.limit(num_items) == pytest.approx(limit)
    assert num_items < NUM_ITEMS_NEEDED or watch.limit() == watch.limit(num_items)


@pytest.mark.parametrize(
    ("loss", "expected"), [(2.99, False), (3.0, False), (3.01, True), (1e30, True)]
)
def test_a_spike_is_above_the_factor_times_the_median(loss: float, expected: bool) -> None:
    assert watching([1.0] * NUM_NEEDED).observe(loss) is expected


def test_a_token_that_is_missed_where_nothing_is_left_to_learn_is_no_spike() -> None:
    """As at the end of the quickstart: from 7 down to 0.003, and now and then 0.02 to 0.05."""
    losses = [7.0] * NUM_NEEDED + [7.0 * 0.96**n for n in range(190)] + [0.003] * NUM_REMEMBERED
    watch = watching(losses)
    assert not watch.observe(0.0174)
    assert not watch.observe(0.046)
    assert watch.observe(0.2)


def test_a_run_that_began_before_the_highest_was_known_goes_on() -> None:
    saved = watching([0.003] * NUM_NEEDED).state_dict()
    del saved["highest"], saved["is_signed"]
    again = LossSpikeDetector(factor=3.0)
    again.load_state_dict(saved)
    assert again.limit() == pytest.approx(0.009)
    assert (again.highest, again.is_signed) == (0.0, False)


def test_before_there_is_a_median_the_highest_loss_is_the_measure() -> None:
    """The first loss is that of the weights before training."""
    assert watching([2.0, 5.5, 2.0]).observe(16.6)
    assert not watching([2.0, 5.5, 2.0]).observe(16.4)
    assert not LossSpikeDetector(factor=3.0).observe(1e9)
    assert not watching([1.0] * (NUM_NEEDED - 1)).observe(100.0, num_items=NUM_ITEMS_NEEDED - 1)


def test_losses_that_cross_zero_once_have_no_spikes_afterwards() -> None:
    """As a policy's: near 0 nearly always, with a median above it."""
    watch = watching([0.02, -0.001, *[0.01] * NUM_NEEDED])
    assert not watch.observe(0.9)
    watch.is_high = True
    watch.forget()
    assert watch == LossSpikeDetector(factor=3.0)
    watching_anew = [watch.observe(loss) for loss in (1.0, 1.0, 9.0)]
    assert watching_anew == [False, False, True]


def test_losses_that_may_be_negative_have_no_spikes() -> None:
    watch = watching([-1.0] * NUM_NEEDED)
    assert watch.limit() == math.inf


def test_spikes_in_a_row_are_reported_once_and_become_usual() -> None:
    watch = watching([1.0] * NUM_NEEDED)
    assert [watch.observe(loss) for loss in (9.0, 9.0, 1.0, 9.0)] == [True, False, False, True]
    watching_on = [watch.observe(9.0) for _ in range(NUM_REMEMBERED)]
    assert not any(watching_on)
    assert watch.limit() == 27.0


def test_what_was_seen_outlives_a_restart() -> None:
    watch, again = watching([1.0, 2.0] * NUM_NEEDED), LossSpikeDetector(factor=3.0)
    watch.observe(50.0)
    watch.until_step = 9
    again.load_state_dict(watch.state_dict())
    assert again == watch
    assert (again.is_high, again.is_signed, again.highest) == (True, False, 2.0)
    watch.observe(-1.0)
    again.load_state_dict(watch.state_dict())
    assert again == watch
    assert again.is_signed


def test_a_bad_step_is_reported_in_one_line() -> None:
    bad = BadStep("not_finite", 7, math.nan, math.inf, 3)
    one_of_three = "training.bad_loss_within_steps(count=3)"
    assert (
        str(bad)
        == f"step 7: training.bad_loss_numbers(loss=NaN, norm=Infinity, extent={one_of_three})"
    )
    spike = BadStep("loss_spike", 111, 0.05428131090270148, 5.538748741149902, 1)
    assert (
        spike.numbers == "training.bad_loss_numbers(loss=0.05428, norm=5.539, extent=)"
    )  # where the step is named already
    assert bad.is_exact is False
    assert (bad.epoch, bad.example, bad.num_examples) == (0, 0, 0)
    assert dataclasses.replace(bad, rows=("a",)).is_exact is True
    error = BadLossError(spike)
    assert (str(error), error.bad) == (f"step 111: {spike.numbers}", spike)
