"""Each cell of the tables of an evaluation."""

import math

import pytest

from infrastructure.config.measures import MEASURES
from infrastructure.evaluation.comparison import MeasureDifference
from infrastructure.evaluation.evaluation_tables import (
    LABELS,
    difference_table,
    overall_table,
    shown,
    shown_range,
    task_table,
)
from infrastructure.evaluation.intervals import Interval
from infrastructure.evaluation.rows import MeasuredRows

NAN = math.nan
LOSS = MeasuredRows(Interval(1.25, 1.0, 1.5), 2345)
F1 = MeasuredRows(Interval(0.5, NAN, NAN), 1)
PERPLEXITY = MeasuredRows(Interval(3.49, 2.718, 4.482), 2345)


def test_each_measure_has_a_label() -> None:
    assert [*LABELS] == [*MEASURES]
    assert len({*LABELS.values()}) == len(LABELS)


def test_each_measure_of_all_rows_has_its_interval_and_its_rows() -> None:
    assert overall_table("a title", {"loss": LOSS, "f1": F1}) == (
        ["a title", "", "95% interval", "rows"],
        [
            ["loss per token", "1.250", "1 to 1.500", "2,345"],
            ["F1", "50.0%", "–", "1"],
        ],
    )


def test_each_task_has_its_measures_and_the_most_rows_of_one() -> None:
    tables = {
        "all": {"loss": LOSS, "rouge1": F1},
        "a": {"f1": F1, "perplexity": PERPLEXITY, "loss": LOSS},
        "b": {},
    }
    assert task_table(tables, with_intervals=False) == (
        ["task", "rows", "loss per token", "F1", "ROUGE-1"],
        [["a", "2,345", "1.250", "50.0%", "–"], ["b", "0", "–", "–", "–"]],
    )
    headings, [row, _] = task_table(tables, with_intervals=True)
    assert headings[2:] == ["loss per token", "perplexity", "F1", "ROUGE-1"]
    assert row[2:] == ["1.250 (1 to 1.500)", "3.490 (2.718 to 4.482)", "50.0% (–)", "–"]
    assert task_table({"all": {"loss": LOSS}}, with_intervals=True)[1] == []


def test_each_difference_has_both_values_its_interval_and_a_verdict() -> None:
    loss = MeasureDifference("loss", 1234, 2.5, 2.25, Interval(-0.25, -0.5, -0.125))
    exact = MeasureDifference("exact_match", 60, 0.5, 1.0, Interval(0.5, 0.25, 0.75), 1, 31, 0.0123)
    few = MeasureDifference("f1", 1, 0.5, 0.5, Interval(0.0, NAN, NAN))
    assert difference_table({"all": [loss, exact], "task 1": [few]}, ("one", "two")) == (
        ["measure", "rows", "one", "two", "difference", "95% interval", "verdict"],
        [
            [
                *("loss per token", "1,234", "2.500", "2.250"),
                *("-0.25", "-0.5 to -0.125", "second is better"),
            ],
            [
                *("exact match", "60", "50.0%", "100%"),
                *("+50.0", "+25.0 to +75.0 points", "second is better (p = 0.012)"),
            ],
            ["  F1, task 1", "1", "50.0%", "50.0%", "+0.0", "– to –", "no clear difference"],
        ],
    )


@pytest.mark.parametrize(
    ("measure", "value", "text"),
    [
        *[("loss", 0.5, "0.5000"), ("perplexity", 12345.0, "12,345"), ("f1", 0.5, "50.0%")],
        *[("token_accuracy", 1.0, "100%"), ("f1", NAN, "–"), ("loss", math.inf, "inf")],
    ],
)
def test_a_loss_is_a_number_and_the_others_are_shares(
    measure: str, value: float, text: str
) -> None:
    assert shown(measure, value) == text
    assert shown_range(measure, Interval(0.0, value, value)) == (
        "–" if math.isnan(value) else f"{text} to {text}"
    )


@pytest.mark.parametrize(
    ("low", "text"),
    [
        *[(-0.0001, "-0.01"), (0.0004, "+0.04"), (0.0006, "+0.1"), (-0.00001, "-0.001")],
        *[(0.0, "+0.0"), (-0.25, "-25.0")],
    ],
)
def test_a_difference_in_points_that_is_not_zero_does_not_look_like_zero(
    low: float, text: str
) -> None:
    one = MeasureDifference("f1", 60, 0.0, 0.5, Interval(low, low, 0.5))
    _, [row] = difference_table({"all": [one]}, ("one", "two"))
    assert row[4:6] == [text, f"{text} to +50.0 points"]
