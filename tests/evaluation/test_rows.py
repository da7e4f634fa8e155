"""Rows and what they come to: which are answered, by task, and over what a number is a mean."""

import math
from typing import Any

import pytest

from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation import rows
from infrastructure.evaluation.generation import Answer
from infrastructure.evaluation.row_losses import RowLoss
from infrastructure.evaluation.rows import (
    ALL,
    MeasuredRow,
    ModelRows,
    Questions,
    _choose,
    by_task,
    measured,
)

QUESTIONS = [GenerationPrompt(str(n), [1], "x", 10, place=f"rows:{n}") for n in range(11)]


@pytest.mark.parametrize(
    ("which", "chosen"),
    [
        (Questions(), [*range(11)]),
        (Questions(most=3), [0, 5, 10]),  # from everywhere in the data
        (Questions(most=11), [*range(11)]),
        (Questions(most=0), []),
        (Questions(most=1, places=["rows:9", "rows:2"]), [2, 9]),  # those of the other model
        (Questions(places=[]), []),
    ],
)
def test_which_rows_are_answered(which: Questions, chosen: list[int]) -> None:
    assert [int(question.prompt) for question in _choose(QUESTIONS, which)] == chosen


def test_fewer_are_answered_where_the_answers_are_long_and_no_number_is_given() -> None:
    long = [GenerationPrompt(str(n), [1], "x", 3000) for n in range(11)]
    assert len(_choose(long, Questions(is_limited=True))) == 2
    assert len(_choose(long, Questions())) == 11


def test_each_row_gets_its_own_answer_and_scores() -> None:
    """Two rows of one place are answered in their order."""
    expected = ["one two", "one", "x", "y"]
    places = ["rows:1", "rows:2", "rows:3", "rows:3"]
    questions = [
        GenerationPrompt(str(n), [1], text, 10, place=place)
        for n, (text, place) in enumerate(zip(expected, places, strict=True))
    ]
    given = [Answer(question, f"answer {question.prompt}") for question in questions]
    measured_rows = [MeasuredRow(f"rows:{n}") for n in (3, 2, 1, 3, 4)]
    scores = {
        "rouge2": lambda written, expected: 0.5,
        "f1": lambda written, expected: float(f"{written[-1]}.{len(expected)}"),
    }
    rows._keep(measured_rows, given, scores)
    answers = [each.answer and each.answer.text for each in measured_rows]
    assert answers == ["answer 2", "answer 1", "answer 0", "answer 3", None]
    assert [each.scores for each in measured_rows] == [
        *({"f1": 2.1}, {"f1": 1.3}, {"rouge2": 0.5, "f1": 0.7}, {"f1": 3.1}, {})
    ]


def row(number: int, task: str, loss: RowLoss | None, **scores: float) -> MeasuredRow:
    question = QUESTIONS[number]
    answer = Answer(question, "x", is_cut=number == 2) if scores else None
    return MeasuredRow(question.place, task, loss, answer, dict(scores))


ROWS = ModelRows(
    "model",
    {},
    [
        row(0, "odd", RowLoss(6.0, 1, 2), exact_match=1.0, rouge2=0.5),
        row(1, "", RowLoss(1.0, 5, 6), exact_match=0.0),
        row(2, "odd", RowLoss(0.0, 0, 0), exact_match=0.0),  # nothing of it is learnt
        row(3, "even", None),
        row(4, "even", RowLoss(2.0, 0, 1)),
    ],
)


def test_a_loss_is_a_mean_over_tokens_and_a_score_over_rows() -> None:
    found = by_task(ROWS)
    assert [*found] == [ALL, "even", "odd"]
    values = {
        task: {name: (of.interval.value, of.num_rows) for name, of in of_task.items()}
        for task, of_task in found.items()
    }
    assert values[ALL] == {
        "loss": (1.0, 3),
        "perplexity": (pytest.approx(math.e), 3),
        "token_accuracy": (pytest.approx(6 / 9), 3),
        "exact_match": (pytest.approx(1 / 3), 3),
        "rouge2": (0.5, 1),
    }
    assert values["odd"] == {
        "loss": (3.0, 1),
        "perplexity": (pytest.approx(math.exp(3)), 1),
        "token_accuracy": (0.5, 1),
        "exact_match": (0.5, 2),
        "rouge2": (0.5, 1),
    }
    assert values["even"]["loss"] == (2.0, 1)
    assert "exact_match" not in values["even"]


def test_a_share_of_none_and_a_mean_of_one_row_are_what_they_are() -> None:
    wrong = measured([row(0, "", None, exact_match=0.0)] * 9, "exact_match")
    assert wrong is not None
    assert (wrong.interval.low, wrong.interval.value) == (0.0, 0.0)
    assert wrong.interval.high > 0.2  # Wilson's: nine rows do not show that it is never right
    few = measured(ROWS.rows[:1], "perplexity")
    assert few is not None
    assert math.isnan(few.interval.low)
    many = measured([ROWS.rows[0], ROWS.rows[1]] * 20, "perplexity")
    loss = measured([ROWS.rows[0], ROWS.rows[1]] * 20, "loss")
    assert many is not None
    assert loss is not None
    ends: Any = (math.exp(loss.interval.low), math.exp(loss.interval.high))
    assert (many.interval.low, many.interval.high) == pytest.approx(ends)


def test_answers_that_were_cut_are_counted() -> None:
    assert (len(ROWS.answers), ROWS.num_cut, ROWS.tasks) == (3, 1, ["even", "odd"])
