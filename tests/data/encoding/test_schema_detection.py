"""The shape is recognised and told; where it is not clear, columns and remedy are named."""

from typing import Any

import pytest

from infrastructure.data.encoding.schema_detection import (
    ShapeRequest,
    recognise_question,
    recognise_shape,
)
from infrastructure.data.readers.rows import Row

MESSAGES = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]


def rows(*values: dict[str, Any]) -> list[Row]:
    return [Row(value, "a.jsonl", number) for number, value in enumerate(values, 1)]


def names(*columns: str) -> list[Row]:
    return rows(dict.fromkeys(columns, "x"))


def test_the_reason_is_given() -> None:
    shape = recognise_shape(names("id", "question", "answer"), ShapeRequest())
    assert shape.name == "qa"
    assert shape.reason == "data.recognized_pair(prompt=question, answer=answer)"
    assert shape.used >= {"question", "answer"}
    assert "id" not in shape.used
    shape = recognise_shape(names("instruction", "input", "output"), ShapeRequest())
    assert shape.name == "alpaca"
    assert "data.recognized_context" in shape.reason
    shape = recognise_shape(rows({"messages": MESSAGES}), ShapeRequest())
    assert shape.reason.startswith("data.recognized_messages(column=messages, keys='role' and 'con")
    shape = recognise_shape(names("text", "author"), ShapeRequest())
    assert (shape.name, shape.columns) == ("text", {"text": "text"})


def test_a_label_beside_a_text_needs_a_decision() -> None:
    sample = rows({"text": "good", "label": 1}, {"text": "bad", "label": 0})
    with pytest.raises(
        ValueError,
        match=r"data\.text_with_label.*text=text.*label=label.*text_value=text.*label_value=label",
    ):
        recognise_shape(sample, ShapeRequest())
    for request in (ShapeRequest("text"), ShapeRequest(text_column="text")):
        assert recognise_shape(sample, request).name == "text"
    shape = recognise_shape(sample, ShapeRequest(prompt_column="text", answer_column="label"))
    assert shape.columns == {"prompt": "text", "answer": "label"}


def test_answers_that_are_marked_as_bad_need_a_decision() -> None:
    """As data for KTO is: learning all of them would teach the bad ones too."""
    sample = rows({"prompt": "Q", "completion": "A", "label": False})
    with pytest.raises(ValueError, match=r"data\.answers_labeled_good_or_bad"):
        recognise_shape(sample, ShapeRequest())
    assert recognise_shape(sample, ShapeRequest("prompt")).name == "prompt"
    sums = rows({"prompt": "Q", "completion": "A", "label": "sums"})
    assert recognise_shape(sums, ShapeRequest()).name == "prompt"


def test_the_context_of_a_question_is_used_and_reported() -> None:
    for columns in (("question", "answer"), ("instruction", "response"), ("prompt", "completion")):
        shape = recognise_shape(names(*columns, "context"), ShapeRequest())
        assert shape.columns["context"] == "context"
        assert "data.recognized_context" in shape.reason
    shape = recognise_shape(
        names("question", "answer", "passage", "context"), ShapeRequest(context_column="passage")
    )
    assert shape.columns["context"] == "passage"
    named = ShapeRequest(prompt_column="question", answer_column="answer")
    shape = recognise_shape(names("question", "answer", "context"), named)
    assert "context" not in shape.columns  # whoever names the prompt has put it together
    with pytest.raises(ValueError, match=r"data.context_column"):
        recognise_shape(names("question", "answer"), ShapeRequest(context_column="passge"))
    with pytest.raises(ValueError, match=r"data\.text_and_pair_columns"):
        ShapeRequest(context_column="a", text_column="b").check()


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
    with pytest.raises(ValueError, match=r"data\.ambiguous_shape.*num_ways=2"):
        recognise_shape(names("problem", "solution", "answer"), ShapeRequest())
    both = rows({"messages": MESSAGES, "question": "Q", "answer": "A"})
    with pytest.raises(ValueError, match=r"data\.ambiguous_shape"):
        recognise_shape(both, ShapeRequest())
    assert recognise_shape(both, ShapeRequest("qa")).name == "qa"


def test_unknown_columns_are_refused_and_named() -> None:
    with pytest.raises(ValueError, match=r"data\.meant_column.*name=mesages.*known=messages"):
        recognise_shape(names("mesages"), ShapeRequest())
    with pytest.raises(ValueError, match=r"data\.unrecognized_rows"):
        recognise_shape(names("foo", "bar"), ShapeRequest())
    with pytest.raises(ValueError, match=r"data\.unrecognized_rows"):
        recognise_shape(names("question", "answer"), ShapeRequest("messages"))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"prompt_column": "they_ask"}, "answer_column"),
        ({"answer_column": "we_reply"}, "prompt_column"),
    ],
)
def test_one_named_column_leaves_only_the_other_to_be_named(
    given: dict[str, str], key: str
) -> None:
    (column,) = given.values()
    refusal = rf"data\.second_pair_column_unknown\(column={column}, .*key=data\.{key}\)"
    with pytest.raises(ValueError, match=refusal) as caught:
        recognise_shape(names("id", "they_ask", "we_reply", "priority"), ShapeRequest(**given))
    assert "data.in_no_known_shape" not in str(caught.value)


def test_pairs_of_answers_are_named_with_what_learns_from_them() -> None:
    with pytest.raises(ValueError, match=r"data\.preference_pairs"):
        recognise_shape(names("prompt", "chosen", "rejected"), ShapeRequest())


QA_ROW, CHAT_ROW = {"question": "Q", "answer": "A"}, {"messages": MESSAGES}
NO_COMMON = r"data\.no_common_columns\(summary=data\.shapes_of_first_rows\(num_rows"
DIFFERENT = r"data\.mixed_shapes\(summary=data\.shapes_of_first_rows\(num_rows"


def group(count: int, shape: str, columns: str, line: int) -> str:
    """A pattern of the words on rows of one shape."""
    shown = rf"shape=data\.of_shape\(shape={shape}\), columns={columns}"
    return rf"data\.rows_of_shape\(count={count}, {shown}, place=a\.jsonl:{line}\)"


MIXED: list[tuple[list[dict[str, Any]], str]] = [
    (
        [QA_ROW, CHAT_ROW, {"text": "T"}],
        rf"^{NO_COMMON}=3, groups={group(1, 'qa', 'question, answer', 1)}; "
        rf"{group(1, 'messages', 'messages', 2)}; {group(1, 'text', 'text', 3)}, more=\)\)$",
    ),
    (
        [QA_ROW, QA_ROW, CHAT_ROW, CHAT_ROW],
        rf"^{DIFFERENT}=4, groups=data\.rows_of_shape\(count=2, ",
    ),
    (
        [QA_ROW, {"a": 1}, {"b": 1}, {"c": 1}, {"d": 1}],
        rf"^{NO_COMMON}=5, .*data\.unclear_shape\(\), .*more=data\.more_groups\(count=2\)",
    ),
    ([row | {"id": 1} for row in (QA_ROW, CHAT_ROW, {"text": "T"})], rf"^{DIFFERENT}=3,"),
    (
        [{}],
        rf"^{NO_COMMON}=1, groups=data\.rows_of_shape\("
        r"count=1, shape=data\.unclear_shape\(\), columns=none,",
    ),
]


@pytest.mark.parametrize(("values", "sentence"), MIXED)
def test_rows_of_different_shapes_are_refused_with_what_was_seen(
    values: list[dict[str, Any]], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        recognise_shape(rows(*values), ShapeRequest())


def test_a_named_column_of_mixed_rows_gets_the_same_sentence() -> None:
    with pytest.raises(ValueError, match=r"data\.no_common_columns"):
        recognise_shape(
            rows(QA_ROW, CHAT_ROW, {"text": "T"}), ShapeRequest(prompt_column="question")
        )


WRONG_REQUESTS: list[tuple[dict[str, str], str]] = [
    ({"shape": "alpacca"}, r"data\.unknown_shape.*name=alpacca,.*\(meant=alpaca\)"),
    ({"prompt_column": "qestion"}, r"setting=data\.prompt_column, .*\(meant=question\)"),
    ({"answer_column": "zzz"}, r"setting=data\.answer_column, .*name=zzz, hint=, known=answer, qu"),
    (
        {"text_column": "body"},
        r"setting=data\.text_column, reason=.*what=column, name=body,",
    ),
    (
        {"task_column": "kind"},
        r"setting=data\.task_column, reason=.*what=column, name=kind,",
    ),
    (
        {"group_column": "level"},
        r"setting=data\.balance_by, reason=.*what=column, name=level,",
    ),
    ({"text_column": "answer", "prompt_column": "question"}, r"data\.text_and_pair_columns"),
    ({"text_column": "answer", "shape": "qa"}, r"data\.text_column_with_shape\(shape=qa\)"),
    ({"prompt_column": "a", "answer_column": "a"}, r"data\.prompt_is_answer_column\(column=a\)"),
    (
        {"prompt_column": "question", "shape": "messages"},
        r"data\.pair_columns_with_shape\(shape=messages\)",
    ),
]


@pytest.mark.parametrize(("settings", "sentence"), WRONG_REQUESTS)
def test_a_wrong_request_is_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        recognise_shape(names("question", "answer"), ShapeRequest(**settings))


def parts(*values: dict[str, Any], **request: str) -> dict[str, str]:
    return recognise_shape(rows(*values), ShapeRequest(**request)).columns


def test_choices_are_those_that_each_answer_names() -> None:
    row = {"question": "Q", "choices": ["x", "y"], "answer": 1}
    pair = {"prompt": "question", "answer": "answer"}
    assert parts(row, row | {"answer": "A"}) == pair | {"choices": "choices"}
    assert parts({"options": ["a"]} | row) == pair | {"choices": "choices"}
    assert parts({"options": ["a", "b"]} | row | {"choices": "none"}) == pair | {
        "choices": "options"
    }
    for other in ({"answer": "x"}, {"answer": 2}, {"choices": []}, {"choices": "x"}):
        assert parts(row, row | other) == pair
        assert parts(row | other, row) == pair
    named = {"prompt_column": "choices", "answer_column": "answer"}
    assert parts(row, **named) == {"prompt": "choices", "answer": "answer"}


def test_history_is_a_list_beside_a_pair() -> None:
    row = {"question": "Q", "answer": "A", "history": [["R", "B"]]}
    pair = {"prompt": "question", "answer": "answer"}
    assert parts(row) == parts(row | {"history": "x"}, row) == pair | {"history": "history"}
    assert parts(row | {"history": "x"}) == pair
    named = {"prompt_column": "history", "answer_column": "answer"}
    assert parts(row, **named) == {"prompt": "history", "answer": "answer"}


def test_what_a_question_alone_brings() -> None:
    pair = {"a": "x", "b": "y"}
    row = {"question": "Q", "context": "C", "system": "S", "history": [["R", "B"]], **pair}
    found = recognise_question(rows(row), ShapeRequest(), ("a", "b"))
    assert found.name == "prompt"
    assert found.columns == {
        "prompt": "question",
        "context": "context",
        "system": "system",
        "history": "history",
    }
    assert found.reason.endswith("data.recognized_history(column=history)")
    assert "data.recognized_context(column=context)" in found.reason
    named = recognise_question(rows(row), ShapeRequest(prompt_column="context"), ("a", "b"))
    assert named.columns == {"prompt": "context", "system": "system", "history": "history"}
    request = ShapeRequest(context_column="note")
    assert recognise_question(rows(row | {"note": "N"}), request).columns["context"] == "note"
    without = recognise_question(rows({"system": "S", **pair}), ShapeRequest(), ("a", "b"))
    assert without.columns == {"system": "system"}
    chat = recognise_question(rows({"messages": MESSAGES, "prompt": "Q"}), ShapeRequest())
    assert chat.columns == {"prompt": "prompt"}
    assert recognise_question(rows({"dialog": MESSAGES}), ShapeRequest()).columns == {
        "prompt": "dialog"
    }
    prompt_given = recognise_question(rows({"input": "Q", "context": "C"}), ShapeRequest())
    assert prompt_given.columns == {"prompt": "input", "context": "context"}
    itself = recognise_question(rows({"prompt": "Q", "answer": "A"}), ShapeRequest(), ("prompt",))
    assert itself.columns == {}


@pytest.mark.parametrize(
    ("better", "worse", "is_choice"),
    [(0, 1, True), ("A", "B", True), (0, 2, False), ("x", 0, False)],
)
def test_choices_of_pairs_are_named_by_both(better: Any, worse: Any, is_choice: bool) -> None:
    row = {"question": "Q", "choices": ["x", "y"], "a": better, "b": worse}
    found = recognise_question(rows(row), ShapeRequest(), ("a", "b"))
    assert ("choices" in found.columns) == is_choice
    alone = recognise_question(rows(row), ShapeRequest())
    assert alone.columns["choices"] == "choices"
    assert "choices" not in recognise_question(rows(row | {"choices": "x"}), ShapeRequest()).columns


def test_what_few_rows_have_gets_its_part_too() -> None:
    plain_rows = [{"question": "Q", "answer": "A"}] * 3
    tool = {"name": "f"}
    one = {"question": "Q", "answer": "A", "context": "C", "system": "S", "tools": [tool]}
    one |= {"chat_template_kwargs": {"x": 1}}
    pair = {"prompt": "question", "answer": "answer"}
    inputs = {"tools": "tools", "options": "chat_template_kwargs"}
    assert parts(*plain_rows, one) == pair | {"context": "context", "system": "system"} | inputs
    reason = recognise_shape(rows(*plain_rows, one), ShapeRequest()).reason
    for column, words in (
        ("context", "data.recognized_context"),
        ("system", "data.recognized_system_message"),
        ("tools", "data.recognized_template_input"),
        ("chat_template_kwargs", "data.recognized_template_input"),
    ):
        assert f"{words}(column={column})" in reason
    have = [row | {"system": "S", "context": "C"} for row in plain_rows]
    other = one | {"system_prompt": "T", "input": "D"}
    assert parts(*have, other) == pair | {"context": "context", "system": "system"} | inputs
    named = {"prompt_column": "question", "answer_column": "answer"}
    assert parts(*plain_rows, one, **named) == pair | {"system": "system"} | inputs
    only = recognise_question(rows(*plain_rows, one), ShapeRequest())
    assert only.columns == {"prompt": "question", "context": "context", "system": "system"} | inputs
    given = recognise_question(rows(*plain_rows, one), ShapeRequest(prompt_column="question"))
    assert "context" not in given.columns
    texts = [{"text": "T"}] * 3
    assert parts(*texts, {"text": "T", "system": "S", "context": "C"}) == {"text": "text"}


def test_a_column_that_a_template_reads_is_no_other_part() -> None:
    row = {"tools": "Q", "answer": "A", "chat_template_kwargs": "fast"}
    named = {"prompt_column": "tools", "answer_column": "answer"}
    expected = {"prompt": "tools", "answer": "answer", "options": "chat_template_kwargs"}
    assert parts(row, **named) == expected  # what is wrong with it is said of each row
    for empty in (None, "", []):
        assert "tools" not in parts({"question": "Q", "answer": "A", "tools": empty})
    some = [
        {"question": "Q", "answer": "A", "tools": one} for one in (None, "saw", [{"name": "f"}])
    ]
    assert parts(*some)["tools"] == "tools"
