"""The shape is recognised and told; where it is not clear, columns and remedy are named."""

from typing import Any

import pytest

from infrastructure.training.data.rows import Row
from infrastructure.training.data.shape_recognition import ShapeRequest, recognise_shape

MESSAGES = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]


def rows(*values: dict[str, Any]) -> list[Row]:
    return [Row(value, "a.jsonl", number) for number, value in enumerate(values, 1)]


def names(*columns: str) -> list[Row]:
    return rows(dict.fromkeys(columns, "x"))


def test_the_reason_is_told() -> None:
    shape = recognise_shape(names("id", "question", "answer"), ShapeRequest())
    assert (shape.name, shape.reason) == ("qa", "column 'question' asks, column 'answer' answers")
    assert shape.unused == ("id",)
    shape = recognise_shape(names("instruction", "input", "output"), ShapeRequest())
    assert shape.name == "alpaca"
    assert "column 'input' is its context" in shape.reason
    shape = recognise_shape(rows({"messages": MESSAGES}), ShapeRequest())
    assert shape.reason == "column 'messages' lists messages with 'role' and 'content'"
    shape = recognise_shape(names("text", "label"), ShapeRequest())
    assert (shape.name, shape.unused) == ("text", ("label",))


def test_structure_goes_before_plain_text() -> None:
    alpaca = names("instruction", "input", "output", "text")
    assert recognise_shape(alpaca, ShapeRequest()).name == "alpaca"
    assert recognise_shape(alpaca, ShapeRequest(text_column="text")).name == "text"
    assert recognise_shape(alpaca, ShapeRequest(shape="text")).columns == {"text": "text"}
    chat = rows({"prompt": "Q", "messages": MESSAGES})
    assert recognise_shape(chat, ShapeRequest()).name == "messages"


def test_most_rows_decide() -> None:
    sample = rows({"question": "Q", "answer": "A"}, {"question": "Q", "answer": "A"}, {"text": "T"})
    assert recognise_shape(sample, ShapeRequest()).name == "qa"


def test_columns_can_be_named() -> None:
    request = ShapeRequest(prompt_column="ask", answer_column="reply")
    shape = recognise_shape(names("ask", "reply", "text"), request)
    assert shape.columns == {"prompt": "ask", "answer": "reply"}
    shape = recognise_shape(
        names("problem", "solution", "answer"), ShapeRequest(answer_column="answer")
    )
    assert shape.columns == {"prompt": "problem", "answer": "answer"}
    request = ShapeRequest("alpaca", prompt_column="ask", answer_column="reply")
    shape = recognise_shape(names("ask", "input", "reply"), request)
    assert shape.columns == {"prompt": "ask", "answer": "reply", "context": "input"}
    assert recognise_shape(names("body"), ShapeRequest("text")).columns == {"text": "body"}


def test_several_readings_are_refused_and_named() -> None:
    with pytest.raises(ValueError, match=r"2 ways.*problem, solution, answer.*data\.shape"):
        recognise_shape(names("problem", "solution", "answer"), ShapeRequest())
    both = rows({"messages": MESSAGES, "question": "Q", "answer": "A"})
    with pytest.raises(ValueError, match=r"messages \(column .*; or qa \(column"):
        recognise_shape(both, ShapeRequest())
    assert recognise_shape(both, ShapeRequest("qa")).name == "qa"


def test_unknown_columns_are_refused_and_named() -> None:
    with pytest.raises(ValueError, match=r"no known shape \(columns: foo, bar\).*prompt_column"):
        recognise_shape(names("foo", "bar"), ShapeRequest())
    with pytest.raises(ValueError, match=r"not of the shape messages \(columns: question"):
        recognise_shape(names("question", "answer"), ShapeRequest("messages"))


WRONG_REQUESTS: list[tuple[dict[str, str], str]] = [
    ({"shape": "alpacca"}, r"data\.shape: unknown shape 'alpacca'; did you mean 'alpaca'"),
    ({"prompt_column": "qestion"}, r"data\.prompt_column: .*did you mean 'question'"),
    ({"answer_column": "zzz"}, r"data\.answer_column: unknown column 'zzz' \(known: answer, qu"),
    ({"text_column": "body"}, r"data\.text_column: unknown column 'body'"),
    ({"task_column": "kind"}, r"data\.task_column: unknown column 'kind'"),
    ({"group_column": "level"}, r"data\.balance_by: unknown column 'level'"),
    ({"text_column": "answer", "prompt_column": "question"}, "set one of the two kinds"),
    ({"text_column": "answer", "shape": "qa"}, "does not go with data.shape='qa'"),
    ({"prompt_column": "question", "shape": "messages"}, "do not go with 'messages'"),
]


@pytest.mark.parametrize(("settings", "sentence"), WRONG_REQUESTS)
def test_a_wrong_request_is_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        recognise_shape(names("question", "answer"), ShapeRequest(**settings))
