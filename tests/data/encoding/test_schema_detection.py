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


def columns(**of_parts: str) -> dict[str, str]:
    return of_parts


ALPACA = names("instruction", "input", "output", "text")
LABELLED = rows({"text": "good", "label": 1}, {"text": "bad", "label": 0})
JUDGED = {"prompt": "Q", "completion": "A", "label": False}
BOTH = rows({"messages": MESSAGES, "question": "Q", "answer": "A"})
QA_ROW, CHAT_ROW = {"question": "Q", "answer": "A"}, {"messages": MESSAGES}


@pytest.mark.parametrize(
    ("sample", "request_", "name", "of_parts"),
    [
        (names("text", "author"), {}, "text", columns(text="text")),
        # structure goes before plain text
        (ALPACA, {}, "alpaca", None),
        (ALPACA, {"text_column": "text"}, "text", None),
        (ALPACA, {"shape": "text"}, "text", columns(text="text")),
        (rows({"prompt": "Q", "messages": MESSAGES}), {}, "messages", None),
        # most rows decide
        (rows(QA_ROW, QA_ROW, {"text": "T"}), {}, "qa", None),
        # columns can be named
        (
            names("ask", "reply", "text"),
            {"prompt_column": "ask", "answer_column": "reply"},
            None,
            columns(prompt="ask", answer="reply"),
        ),
        (
            names("problem", "solution", "answer"),
            {"answer_column": "answer"},
            None,
            columns(prompt="problem", answer="answer"),
        ),
        (
            names("ask", "input", "reply"),
            {"shape": "alpaca", "prompt_column": "ask", "answer_column": "reply"},
            None,
            columns(prompt="ask", answer="reply", context="input"),
        ),
        (names("body"), {"shape": "text"}, None, columns(text="body")),
        # what is refused without a decision, below
        (BOTH, {"shape": "qa"}, "qa", None),
        (LABELLED, {"shape": "text"}, "text", None),
        (LABELLED, {"text_column": "text"}, "text", None),
        (
            LABELLED,
            {"prompt_column": "text", "answer_column": "label"},
            None,
            columns(prompt="text", answer="label"),
        ),
        (rows(JUDGED), {"shape": "prompt"}, "prompt", None),
        (rows(JUDGED | {"label": "sums"}), {}, "prompt", None),
    ],
)
def test_the_shape_is_that_of_the_columns_or_of_the_request(
    sample: list[Row], request_: dict[str, str], name: str | None, of_parts: dict[str, str] | None
) -> None:
    shape = recognise_shape(sample, ShapeRequest(**request_))
    assert name in (shape.name, None)
    assert of_parts in (shape.columns, None)


@pytest.mark.parametrize(
    ("sample", "name", "reason"),
    [
        (
            names("id", "question", "answer"),
            "qa",
            "data.recognized_pair(prompt=question, answer=answer)",
        ),
        (names("instruction", "input", "output"), "alpaca", "data.recognized_context"),
        (
            rows(CHAT_ROW),
            "messages",
            "data.recognized_messages(column=messages, keys='role' and 'con",
        ),
    ],
)
def test_the_reason_is_given(sample: list[Row], name: str, reason: str) -> None:
    shape = recognise_shape(sample, ShapeRequest())
    assert shape.name == name
    assert reason in shape.reason
    assert {"question", "answer"} <= shape.used or name != "qa"
    assert "id" not in shape.used


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
    ({"text_column": "answer", "prompt_column": "question"}, r"data\.text_and_pair_columns"),
    ({"text_column": "answer", "shape": "qa"}, r"data\.text_column_with_shape\(shape=qa\)"),
    ({"prompt_column": "a", "answer_column": "a"}, r"data\.prompt_is_answer_column\(column=a\)"),
    (
        {"prompt_column": "question", "shape": "messages"},
        r"data\.pair_columns_with_shape\(shape=messages\)",
    ),
]
UNCLEAR: list[tuple[list[Row], dict[str, str], str]] = [
    *((rows(*values), {}, sentence) for values, sentence in MIXED),
    # a named column of mixed rows gets the same sentence
    (
        rows(QA_ROW, CHAT_ROW, {"text": "T"}),
        {"prompt_column": "question"},
        r"data\.no_common_columns",
    ),
    (
        LABELLED,
        {},
        r"data\.text_with_label.*text=text.*label=label.*text_value=text.*label_value=label",
    ),
    # as data for KTO is: learning all of the answers would teach the bad ones too
    (rows(JUDGED), {}, r"data\.answers_labeled_good_or_bad"),
    (names("problem", "solution", "answer"), {}, r"data\.ambiguous_shape.*num_ways=2"),
    (BOTH, {}, r"data\.ambiguous_shape"),
    (names("mesages"), {}, r"data\.meant_column.*name=mesages.*known=messages"),
    (names("foo", "bar"), {}, r"data\.unrecognized_rows"),
    (names("question", "answer"), {"shape": "messages"}, r"data\.unrecognized_rows"),
    (names("prompt", "chosen", "rejected"), {}, r"data\.preference_pairs"),
    *((names("question", "answer"), request, sentence) for request, sentence in WRONG_REQUESTS),
]


@pytest.mark.parametrize(("sample", "request_", "sentence"), UNCLEAR)
def test_what_is_unclear_or_wrong_is_refused_with_what_was_seen(
    sample: list[Row], request_: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        recognise_shape(sample, ShapeRequest(**request_))


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
