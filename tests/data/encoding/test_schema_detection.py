"""The shape is recognised and told; where it is not clear, columns and remedy are named."""

from typing import Any

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.encoding.schema_detection import (
    advice,
    common_columns,
    picture_words,
    recognise_question,
    recognise_shape,
    shown,
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
        # a named column of a pair is of no chat
        (
            BOTH,
            {"prompt_column": "question"},
            "prompt",
            columns(prompt="question", answer="answer"),
        ),
        (BOTH, {"answer_column": "answer"}, "qa", columns(prompt="question", answer="answer")),
        (
            rows({**CHAT_ROW, **QA_ROW, "note": "x"}),
            {"context_column": "note"},
            "qa",
            columns(prompt="question", answer="answer", context="note"),
        ),
        (names("ask", "answer"), {"prompt_column": "ask"}, "prompt", None),
        (names("x", "query", "answer", "instruction"), {}, "qa", None),
        (
            rows({"t": {"q": "T"}}),
            {"shape": "text", "text_column": "t.q"},
            "text",
            columns(text="t.q"),
        ),
        (
            rows(QA_ROW | {"note": None}),
            {"context_column": "note"},
            "qa",
            columns(prompt="question", answer="answer", context="note"),
        ),
        (
            rows(QA_ROW, QA_ROW, QA_ROW | {"note": "x"}),
            {"context_column": "note"},
            "qa",
            columns(prompt="question", answer="answer", context="note"),
        ),
        # the answer is no context, in few rows either
        (
            rows({"question": "Q"}, {"question": "Q"}, {"question": "Q", "context": "A"}),
            {"answer_column": "context"},
            None,
            columns(prompt="question", answer="context"),
        ),
        (names("src", "tgt", "context"), {}, "prompt", columns(prompt="src", answer="tgt")),
        (
            rows({"prompt": "Q", "completion": "A", "chosen": "B", "rejected": "C"}),
            {"shape": "prompt"},
            "prompt",
            columns(prompt="prompt", answer="completion"),
        ),
    ],
)
def test_the_shape_is_that_of_the_columns_or_of_the_request(
    sample: list[Row], request_: dict[str, str], name: str | None, of_parts: dict[str, str] | None
) -> None:
    shape = recognise_shape(sample, DataConfig(**request_))
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
    shape = recognise_shape(sample, DataConfig())
    assert shape.name == name
    assert reason in shape.reason
    assert {"question", "answer"} <= shape.used or name != "qa"
    assert "id" not in shape.used


def test_the_context_of_a_question_is_used_and_reported() -> None:
    for columns in (("question", "answer"), ("instruction", "response"), ("prompt", "completion")):
        shape = recognise_shape(names(*columns, "context"), DataConfig())
        assert shape.columns["context"] == "context"
        assert "data.recognized_context" in shape.reason
    shape = recognise_shape(
        names("question", "answer", "passage", "context"), DataConfig(context_column="passage")
    )
    assert shape.columns["context"] == "passage"
    named = DataConfig(prompt_column="question", answer_column="answer")
    shape = recognise_shape(names("question", "answer", "context"), named)
    assert "context" not in shape.columns  # whoever names the prompt has put it together
    with pytest.raises(ValueError, match=r"data.context_column"):
        recognise_shape(names("question", "answer"), DataConfig(context_column="passge"))
    with pytest.raises(ValueError, match=r"data\.text_and_pair_columns"):
        recognise_shape(names("a", "b"), DataConfig(context_column="a", text_column="b"))


@pytest.mark.parametrize(
    ("given", "held", "missing", "others", "key"),
    [
        (
            {"prompt_column": "they_ask"},
            *("the prompts", "the answers"),
            *("id, we_reply, priority", "answer_column"),
        ),
        (
            {"answer_column": "we_reply"},
            *("the answers", "the prompts"),
            *("id, they_ask, priority", "prompt_column"),
        ),
    ],
)
def test_one_named_column_leaves_only_the_other_to_be_named(
    given: dict[str, str], held: str, missing: str, others: str, key: str
) -> None:
    (column,) = given.values()
    about = rf"column={column}, held={held}, missing={missing}, others={others}, key=data\.{key}"
    refusal = rf"data\.second_pair_column_unknown\({about}\)"
    with pytest.raises(ValueError, match=refusal) as caught:
        recognise_shape(names("id", "they_ask", "we_reply", "priority"), DataConfig(**given))
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
    ([row | {"id": 1} for row in (QA_ROW, CHAT_ROW, {"foo": "T"})], rf"^{DIFFERENT}=3,"),
    (
        [CHAT_ROW, QA_ROW, QA_ROW, {"text": "T"}, {"a": 1}],  # the largest group is the first
        rf"^{NO_COMMON}=5, groups={group(2, 'qa', 'question, answer', 2)}; "
        rf"{group(1, 'messages', 'messages', 1)}; {group(1, 'text', 'text', 4)}, "
        r"more=data\.more_groups\(count=1\)\)\)$",
    ),
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
    *(
        (
            {name: "question", "shape": "messages"},
            r"data\.pair_columns_with_shape\(shape=messages\)",
        )
        for name in ("prompt_column", "answer_column", "context_column")
    ),
    ({"text_column": "question", "answer_column": "answer"}, r"data\.text_and_pair_columns"),
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
    (names("foo", "bar"), {"shape": "text"}, r"data\.not_in_shape\(shape=text\)"),
    (names("text", "content"), {}, r"data\.ambiguous_shape\(num_ways=2,"),
    (names("question", "answer"), {"shape": "messages"}, r"data\.unrecognized_rows"),
    (names("text"), {"shape": "qa"}, r"data\.not_in_shape\(shape=qa\)"),
    (
        names("foo", "bar"),
        {"shape": "qa", "prompt_column": "foo"},
        r"data\.not_in_shape\(shape=qa\)",
    ),
    # pairs of known names are searched for only if no column is named
    (names("frage", "antwort", "x"), {"prompt_column": "x"}, r"unknown\(column=x, held=the prom"),
    (names("frage", "antwort", "x"), {"answer_column": "x"}, r"unknown\(column=x, held=the answ"),
    # a question that is a list is a message, in any of the rows
    (rows({"q": "Q", "a": "A"}, {"q": ["Q"], "a": "A"}), {}, r"data\.unrecognized_rows"),
    (rows({"dialog": [{"content": "Q"}]}), {}, r"data\.unrecognized_rows"),
    (
        names("text", "img"),
        {"image_column": "img"},
        r"data\.images_without_prompt\(column=img, text_column=text\)",
    ),
    (names("prompt", "chosen", "rejected"), {}, r"data\.preference_pairs"),
    *((names("question", "answer"), request, sentence) for request, sentence in WRONG_REQUESTS),
]


@pytest.mark.parametrize(("sample", "request_", "sentence"), UNCLEAR)
def test_what_is_unclear_or_wrong_is_refused_with_what_was_seen(
    sample: list[Row], request_: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        recognise_shape(sample, DataConfig(**request_))


def parts(*values: dict[str, Any], **request: str) -> dict[str, str]:
    return recognise_shape(rows(*values), DataConfig(**request)).columns


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
    both = recognise_shape(rows(row | {"options": ["x", "y"]}), DataConfig())
    assert both.columns == pair | {"choices": "choices"}
    assert both.reason.endswith("data.recognized_choices(column=choices)")
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
    found = recognise_question(rows(row), DataConfig(), ("a", "b"))
    assert found.name == "prompt"
    assert found.columns == {
        "prompt": "question",
        "context": "context",
        "system": "system",
        "history": "history",
    }
    assert found.reason.endswith("data.recognized_history(column=history)")
    assert "data.recognized_context(column=context)" in found.reason
    named = recognise_question(rows(row), DataConfig(prompt_column="context"), ("a", "b"))
    assert named.columns == {"prompt": "context", "system": "system", "history": "history"}
    whole = recognise_question(rows(row), DataConfig(prompt_column="question"), ("a", "b"))
    assert "context" not in whole.columns  # the named column holds the whole prompt
    request = DataConfig(context_column="note")
    assert recognise_question(rows(row | {"note": "N"}), request).columns["context"] == "note"
    without = recognise_question(rows({"system": "S", **pair}), DataConfig(), ("a", "b"))
    assert without.columns == {"system": "system"}
    chat = recognise_question(rows({"messages": MESSAGES, "prompt": "Q"}), DataConfig())
    assert chat.columns == {"prompt": "prompt"}
    assert recognise_question(rows({"dialog": MESSAGES}), DataConfig()).columns == {
        "prompt": "dialog"
    }
    prompt_given = recognise_question(rows({"input": "Q", "context": "C"}), DataConfig())
    assert prompt_given.columns == {"prompt": "input", "context": "context"}
    itself = recognise_question(rows({"prompt": "Q", "answer": "A"}), DataConfig(), ("prompt",))
    assert itself.columns == {}


@pytest.mark.parametrize(
    ("better", "worse", "is_choice"),
    [(0, 1, True), ("A", "B", True), (0, 2, False), ("x", 0, False)],
)
def test_choices_of_pairs_are_named_by_both(better: Any, worse: Any, is_choice: bool) -> None:
    row = {"question": "Q", "choices": ["x", "y"], "a": better, "b": worse}
    found = recognise_question(rows(row), DataConfig(), ("a", "b"))
    assert ("choices" in found.columns) == is_choice
    alone = recognise_question(rows(row), DataConfig())
    assert alone.columns["choices"] == "choices"
    assert "choices" not in recognise_question(rows(row | {"choices": "x"}), DataConfig()).columns


def test_what_few_rows_have_gets_its_part_too() -> None:
    plain_rows = [{"question": "Q", "answer": "A"}] * 3
    tool = {"name": "f"}
    one = {"question": "Q", "answer": "A", "context": "C", "system": "S", "tools": [tool]}
    one |= {"chat_template_kwargs": {"x": 1}}
    pair = {"prompt": "question", "answer": "answer"}
    inputs = {"tools": "tools", "options": "chat_template_kwargs"}
    assert parts(*plain_rows, one) == pair | {"context": "context", "system": "system"} | inputs
    reason = recognise_shape(rows(*plain_rows, one), DataConfig()).reason
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
    only = recognise_question(rows(*plain_rows, one), DataConfig())
    assert only.columns == {"prompt": "question", "context": "context", "system": "system"} | inputs
    given = recognise_question(rows(*plain_rows, one), DataConfig(prompt_column="question"))
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


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"parent_id": "1", "role": "user", "text": "T", "lang": "en"}, "one_message_per_row"),
        ({"mapping": {}}, "message_trees"),
        ({"prompt": {"replies": [], "text": "Q"}}, "message_trees"),
        ({"title": "x", "root": {"mapping": {}}}, "message_trees"),
        ({"input_ids": [1], "labels": [1]}, "rows_of_token_ids"),
        ({"text": "T", "input_ids": [1]}, "rows_of_token_ids"),
        ({"annotations": [], "data": {}, "id": 1}, "label_studio_tasks"),
        ({"annotations": [], "data": {}}, "label_studio_tasks"),
        ({"parent_id": "1", "role": "user", "text": "T"}, "one_message_per_row"),
        ({"replies": []}, "message_trees"),
    ],
)
def test_well_known_files_that_are_no_examples_are_named(row: dict[str, Any], code: str) -> None:
    for request in ({}, {"task_column": next(iter(row)), "image_column": "none"}):
        with pytest.raises(ValueError, match=rf"data\.{code}\(\)"):
            recognise_shape(rows(row, dict.fromkeys(row)), DataConfig(**request))
    if "text" in row:  # who names a column has looked at it
        assert recognise_shape(rows(row), DataConfig(text_column="text")).name == "text"


def test_one_of_the_columns_of_such_files_is_none() -> None:
    for columns_ in (("parent_id", "text"), ("annotations", "text"), ("role", "text")):
        assert recognise_shape(names(*columns_), DataConfig()).name == "text"


def test_labels_are_refused_unless_the_request_names_the_shape() -> None:
    for label in ("label", "labels", "class", "sentiment", "Target"):
        sample = rows({"text": "good", label: "x"})
        refusal = rf"data\.text_with_label\(text=text, label={label}, "
        with pytest.raises(ValueError, match=refusal):
            recognise_shape(sample, DataConfig())
        for request in ({"shape": "text"}, {"text_column": "text"}):
            assert recognise_shape(sample, DataConfig(**request)).name == "text"
    quoted = rows({"text": "good", " Class ": 1})
    with pytest.raises(ValueError, match=r'label_value=" Class "\)'):
        recognise_shape(quoted, DataConfig())
    judged = rows(JUDGED, JUDGED | {"label": True})
    with pytest.raises(ValueError, match=r"labeled_good_or_bad\(label=label, shape=prompt\)"):
        recognise_shape(judged, DataConfig())
    some = rows(JUDGED, JUDGED | {"label": "x"})
    for sample, request in (
        (some, {}),
        (judged, {"shape": "prompt"}),
        (judged, {"prompt_column": "prompt", "answer_column": "completion"}),
        (rows({"question": "Q", "target": "A"}), {"answer_column": "target"}),
    ):
        assert recognise_shape(sample, DataConfig(**request)).name in ("prompt", "qa")


def test_answers_that_are_only_true_or_false_are_refused() -> None:
    yes, no = {"question": "Q", "answer": True}, {"question": "Q", "answer": False}
    with pytest.raises(ValueError, match=r"data\.boolean_answers\(column=answer\)"):
        recognise_shape(rows(yes, no), DataConfig())
    assert recognise_shape(rows(yes, {"question": "Q", "answer": "no"}), DataConfig())
    assert recognise_shape(rows({"messages": MESSAGES, "ok": True}), DataConfig())


PAIR = {"chosen": "A", "rejected": "B"}


@pytest.mark.parametrize(
    ("row", "columns_", "instead"),
    [
        (PAIR, "'chosen' and 'rejected'", "data.set_text_column_2(column=chosen)"),
        (
            {"prompt": "Q", **PAIR},
            "'chosen' and 'rejected'",
            "data.set_pair_columns(prompt=prompt, answer=chosen)",
        ),
        (
            {"query": "Q", "response_j": "A", "response_k": "B"},
            "'response_j' and 'response_k'",
            "data.set_pair_columns(prompt=query, answer=response_j)",
        ),
        (
            {"messages": MESSAGES, "Chosen": MESSAGES, "rejected": MESSAGES},
            "'Chosen' and 'rejected'",
            "data.set_shape(shape=messages)",
        ),
        (
            {"chosen": MESSAGES, "rejected": MESSAGES},
            "'chosen' and 'rejected'",
            "data.put_into_messages(chosen=chosen)",
        ),
        (
            {"prompt": "Q", "chosen": MESSAGES, "rejected": MESSAGES},
            "'chosen' and 'rejected'",
            "data.put_into_messages(chosen=chosen)",
        ),
        (
            {"conversations": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES},
            "'chosen' and 'rejected'",
            "data.put_into_messages(chosen=chosen)",
        ),
        (
            {"query": "R", "prompt": "Q", **PAIR},
            "'chosen' and 'rejected'",
            "data.set_pair_columns(prompt=prompt, answer=chosen)",
        ),
        (
            {"question": "Q", "answer_a": "A", "answer_b": "B"},
            "'answer_a' and 'answer_b'",
            "data.set_pair_columns(prompt=question, answer=answer_a)",
        ),
        (
            {"prompt": "Q", "output_1": "A", "output_2": "B"},
            "'output_1' and 'output_2'",
            "data.set_pair_columns(prompt=prompt, answer=output_1)",
        ),
        (
            {"prompt": "Q", "response_0": "A", "response_1": "B"},
            "'response_0' and 'response_1'",
            "data.set_pair_columns(prompt=prompt, answer=response_0)",
        ),
        (
            {"prompt": "Q", "response_a": "A", "response_b": "B"},
            "'response_a' and 'response_b'",
            "data.set_pair_columns(prompt=prompt, answer=response_a)",
        ),
        (
            {"conversation_a": MESSAGES, "conversation_b": MESSAGES},
            "'conversation_a' and 'conversation_b'",
            "data.put_into_messages(chosen=conversation_a)",
        ),
        (
            {"input": "Q", "preferred_output": "A", "non_preferred_output": "B"},
            "'preferred_output' and 'non_preferred_output'",
            "data.set_pair_columns(prompt=input, answer=preferred_output)",
        ),
    ],
)
def test_pairs_of_a_better_and_a_worse_answer_are_refused_with_what_can_be_learned(
    row: dict[str, Any], columns_: str, instead: str
) -> None:
    with pytest.raises(ValueError) as caught:
        recognise_shape(rows(row), DataConfig())
    assert str(caught.value).startswith(f"data.preference_pairs(columns={columns_}, ")
    assert str(caught.value).endswith(f"instead={instead})")
    prompts = ("prompt", "query", "input", "question", "conversations")
    better = next(name for name in row if name not in prompts)
    if next(iter(row)) == "prompt":
        assert recognise_shape(rows(row), DataConfig(answer_column=better)).name == "prompt"
    assert recognise_shape(rows(row), DataConfig(text_column=better)).name == "text"


@pytest.mark.parametrize(
    ("row", "advice_"),
    [
        ({"id": "1", "sentence": "x"}, "data.set_text_column(column=sentence)"),
        ({"ID": 1, "sentence": "x"}, "data.set_text_column(column=sentence)"),
        ({"mein téxt": "x"}, 'data.set_text_column(column="mein téxt")'),
        ({"swali": "Q", "jibu": "A"}, "data.set_prompt_and_answer(first=swali, second=jibu)"),
        (
            {"t": {"de": "Q", "en": "A", "n": 1}},
            "data.set_prompt_and_answer(first=t.de, second=t.en)",
        ),
        ({"t": {"de": "Q"}, "en": "A"}, "data.set_prompt_and_answer(first=t.de, second=en)"),
        ({"en": "A", "t": {"de": "Q"}}, "data.set_columns()"),
        ({"sentence": "x", "tags": ["a"]}, "data.set_columns()"),
        ({"a": "x", "b": "y", "c": "z"}, "data.set_columns()"),
        ({"a": "x", "b" * 49: "y"}, "data.set_text_column(column=a)"),
        ({"a": "x", "b" * 48: "y"}, f"data.set_prompt_and_answer(first=a, second={'b' * 48})"),
        ({"a": "x", "b": ""}, "data.set_text_column(column=a)"),
        ({"n": 1}, "data.set_columns()"),
    ],
)
def test_the_way_on_names_the_columns_of_text(row: dict[str, Any], advice_: str) -> None:
    with pytest.raises(ValueError, match=r"data\.unrecognized_rows\(") as caught:
        recognise_shape(rows(row), DataConfig())
    assert str(caught.value).endswith(f"advice={advice_})")


def test_the_first_row_decides_what_a_column_holds() -> None:
    for second, advice_ in (
        ({"sentence": "y", "tags": None}, "data.set_columns()"),
        ({"sentence": 5, "tags": ["a"]}, "data.set_columns()"),
    ):
        with pytest.raises(ValueError) as caught:
            recognise_shape(rows({"sentence": "x", "tags": ["a"]}, second), DataConfig())
        assert str(caught.value).endswith(f"advice={advice_})")
    with pytest.raises(ValueError, match=r"advice=data\.set_text_column\(column=sentence\)"):
        recognise_shape(rows({"sentence": "x"}, {"sentence": 5}), DataConfig())
    mixed = rows({"chosen": "A", "rejected": "B"}, {"chosen": MESSAGES, "rejected": MESSAGES})
    with pytest.raises(ValueError, match=r"instead=data\.put_into_messages\(chosen=chosen\)"):
        recognise_shape(mixed, DataConfig())


PAIRS = (
    ("prompt", ("prompt", "input"), ("completion", "response", "answer", "output", "target")),
    ("qa", ("question", "query", "problem"), ("answer", "response", "solution", "output")),
    ("alpaca", ("instruction",), ("output", "response")),
)


@pytest.mark.parametrize(("name", "prompts", "answers"), PAIRS)
def test_each_usual_name_is_known(
    name: str, prompts: tuple[str, ...], answers: tuple[str, ...]
) -> None:
    for prompt in prompts:
        for answer in answers:
            found = recognise_shape(names(prompt.title(), f" {answer}"), DataConfig())
            expected = {"prompt": prompt.title(), "answer": f" {answer}"}
            assert (found.name, found.columns) == (name, expected)
        alone = recognise_question(names("x", prompt), DataConfig())
        assert alone.columns.get("prompt") == (prompt if prompt != "problem" else None)


def test_each_usual_name_of_another_part_is_known() -> None:
    for column in ("messages", "conversations", "conversation", "dialogue", "dialog", "chat"):
        alone = recognise_question(rows({column: MESSAGES}), DataConfig())
        assert parts({column: MESSAGES}) == {"chat": column} == {"chat": alone.columns["prompt"]}
        assert parts({column: ["Q", "A"]}) == {"chat": column, "turns": column}
    for column in ("contents", "turns", "utterances"):
        assert parts({column: MESSAGES}) == {"chat": column}
        assert parts({column: ["Q", "A"]}) == {"chat": column, "turns": column}
    for column in ("text", "content", "document"):
        assert parts({column: "T"}) == {"text": column}
    for column in ("system", "system_prompt", "systemInstruction", "system_instruction"):
        assert parts(QA_ROW | {column: "S"})["system"] == column
    for column in ("input", "context"):
        assert parts({"instruction": "Q", "output": "A", column: "C"})["context"] == column
    two = recognise_shape(
        names("instruction", "output", "context", "input", "system_prompt", "system"),
        DataConfig(),
    )
    assert (two.columns["context"], two.columns["system"]) == ("input", "system")
    assert "data.recognized_context(column=input)" in two.reason
    assert "data.recognized_system_message(column=system)" in two.reason


@pytest.mark.parametrize(
    ("slip", "known"),
    [
        ("conversaton", "conversation"),
        ("dialogs", "dialog"),
        ("chats", "chat"),
        ("promtp", "prompt"),
        ("completon", "completion"),
        ("instructon", "instruction"),
        ("outptu", "output"),
        ("anwser", "answer"),
        ("texts", "text"),
    ],
)
def test_a_slip_in_each_usual_name_is_noticed(slip: str, known: str) -> None:
    with pytest.raises(ValueError, match=rf"meant_column\(name={slip}, known={known}\)"):
        recognise_shape(names("x", slip), DataConfig())


def test_where_rows_hold_pictures_is_described() -> None:
    image = {"type": "image", "image": "a.png"}
    shown_ = [{"role": "user", "content": [image]}, MESSAGES[1]]
    sample = rows(CHAT_ROW, {"messages": [MESSAGES[0]]}, {"messages": shown_})
    chat = recognise_shape(sample, DataConfig())
    assert picture_words(sample, chat) == "data.images_in_messages(place=a.jsonl:3)"
    assert picture_words(sample[:2], chat) == ""
    named = rows(QA_ROW | {"img": "a.png", "image": "b.png"})
    for request, column in (({}, "image"), ({"image_column": "img"}, "img")):
        schema = recognise_shape(named, DataConfig(**request))
        assert schema.columns["pictures"] == column
        assert picture_words(named, schema) == f"data.place_column(column={column})"
    none = recognise_shape(named, DataConfig(image_column="none"))
    assert "pictures" not in none.columns
    assert picture_words(named, none) == ""


def test_a_slip_in_a_usual_name_is_named_unless_the_request_has_a_shape() -> None:
    sample = names("id", "questoin", "x" * 25 + "answer", "anwser")
    meant = "hint=data.meant_column(name=questoin, known=question), advice="
    for request, wanted, hint in (
        ({}, "data.in_no_known_shape()", meant),
        ({"shape": "qa"}, "data.not_in_shape(shape=qa)", "hint=, advice="),
    ):
        with pytest.raises(ValueError) as caught:
            recognise_shape(sample, DataConfig(**request))
        assert f"wanted={wanted}, " in str(caught.value)
        assert hint in str(caught.value)


def test_names_of_columns_are_shortened_and_the_rest_is_counted() -> None:
    assert shown([]) == "none"
    assert shown(list("abcdef")) == "a, b, c, d, e, f"
    assert shown(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"
    assert shown(["x" * 24, "y" * 25]) == f"{'x' * 24}, {'y' * 23}…"


def test_half_of_the_rows_make_a_column_a_common_one() -> None:
    most = [{"question": "Q", "answer": "A"}] * 2
    few = [{"question": "Q", "answer": "A", "context": "C"}]
    assert common_columns(rows(*most, *few)) == ["question", "answer"]
    assert common_columns(rows(*most, *few, *few)) == ["question", "answer", "context"]


@pytest.mark.parametrize(
    ("texts", "marks"),
    [
        (["<|im_start|>user\nQ"], "<|im_start|>"),
        (["plain", "[INST] Q [/INST]"], "[INST]"),
        (["### Human: Q"], "### Human:"),
        (["### Instruction:\nQ"], "### Instruction:"),
        (["<|user|>Q"], "<|user|>"),
        (["x\n\nHuman: Q"], "Human:"),
        (["[INST] Q", "<|user|>Q"], "<|user|>"),
        (["<|user|>Q", "[INST] Q"], "<|user|>"),
        (["Human: Q", None, "x < |user| >"], None),
    ],
)
def test_texts_that_hold_a_formatted_chat_are_noted(texts: list[Any], marks: str | None) -> None:
    sample = rows(*({"text": one} for one in texts))
    schema = recognise_shape(sample, DataConfig())
    note = f"data.text_holds_formatted_chat(column=text, marks={marks})"
    assert advice(sample, schema) == ([note] if marks else [])
    pairs_ = [{"question": one, "answer": "A"} for one in texts]
    assert advice(rows(*pairs_), recognise_shape(rows(*pairs_), DataConfig())) == []


@pytest.mark.parametrize(
    ("row", "prompt", "answer", "context"),
    [
        ({"Anweisung": "Q", "Ausgabe": "A", "Eingabe": "C"}, "Anweisung", "Ausgabe", "Eingabe"),
        ({"指令": "Q", "输出": "A", "背景": "C"}, "指令", "输出", None),
        ({"Frage": "Q", "Antwort": "A", "Kontext": "C"}, "Frage", "Antwort", "Kontext"),
        ({"Frage": "Q", "Antwort": "A", "passage": "C"}, "Frage", "Antwort", "passage"),
        ({"question-stem": "Q", "AnswerKey": "A"}, "question-stem", "AnswerKey", None),
        ({"src": "Q", "tgt": "A", "passage": "C"}, "src", "tgt", None),
        ({"re\u0301ponse": "A", "question": "Q"}, "question", "re\u0301ponse", None),
        ({"q": "Q", "a": "A", "contexts": "C"}, "q", "a", None),
    ],
)
def test_names_of_other_languages_and_known_files(
    row: dict[str, str], prompt: str, answer: str, context: str | None
) -> None:
    found = recognise_shape(rows(row), DataConfig()).columns
    assert found == {"prompt": prompt, "answer": answer} | ({"context": context} if context else {})
    given = DataConfig(context_column=answer)
    assert recognise_shape(rows(row), given).columns["context"] == answer
    listed = {**row, prompt: ["Q"]}
    with pytest.raises(ValueError, match=r"data\.unrecognized_rows"):
        recognise_shape(rows(listed), DataConfig())


def test_chats_are_known_by_most_rows_and_texts_by_turns_by_all() -> None:
    shared = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
    authored = [{"author": "user", "content": "Q"}, {"author": "bot", "content": "A"}]
    for chats, name in (
        ([MESSAGES, MESSAGES, shared], "messages"),
        ([MESSAGES, shared, shared], "sharegpt"),
        ([authored], "messages"),
        (["[broken", MESSAGES], "messages"),
        ([MESSAGES, [], 5, {"a": 1}, None], "messages"),
        ([[*shared, *MESSAGES]], "sharegpt"),
        ([[{"role": "user"}]], "messages"),
    ):
        found = recognise_shape(rows(*({"dialog": one} for one in chats)), DataConfig())
        assert (found.name, found.columns) == (name, {"chat": "dialog"})
    named = recognise_shape(rows({"chat": authored}), DataConfig()).reason
    assert "keys='author' and 'content'" in named
    for column in ("turns", "utterances", "data", "messages"):
        found = recognise_shape(rows({column: ["Q", "A"]}, {column: ["Q", "A", "R"]}), DataConfig())
        assert found.columns == {"chat": column, "turns": column}
        for other in (["Q"], "Q", ["Q", 1], None):
            with pytest.raises(ValueError, match=r"data\.unrecognized_rows"):
                recognise_shape(rows({column: ["Q", "A"]}, {column: other}), DataConfig())
    both = rows({"messages": MESSAGES, "turns": ["Q", "A"], "system_prompt": "S"})
    found = recognise_shape(both, DataConfig())
    assert found.columns == {"chat": "messages", "system": "system_prompt"}
    by_turns = recognise_shape(rows({"turns": ["Q", "A"], "System": "S"}), DataConfig())
    assert by_turns.columns["system"] == "System"


def test_pictures_are_known_by_name_and_value() -> None:
    def of(**values: Any) -> str | None:
        return recognise_shape(
            rows({"question": "Q", "answer": "A", **values}), DataConfig()
        ).columns.get("pictures")

    names_ = ("images", "image", "pictures", "picture", "image_path", "image_paths", "img")
    assert [of(**{name: "a.png"}) for name in names_] == [*names_]
    assert of(image="a.png", images=["b.png"]) == "images"
    assert of(images=None, img={"bytes": b"x"}) == "img"
    for other in ("a photo", None, "", [], 5):
        assert of(image=other) is None
    answered = rows({"question": "Q", "image": "a.png"})
    named = DataConfig(prompt_column="question", answer_column="image")
    assert "pictures" not in recognise_shape(answered, named).columns
    some = rows(*[{"question": "Q", "answer": "A", "image": one} for one in ("?", "a.png")])
    shape = recognise_shape(some, DataConfig())
    assert shape.columns["pictures"] == "image"
    assert shape.reason.endswith("data.column_holds_images(column=image)")


def test_the_more_certain_names_go_first() -> None:
    for row, expected in (
        ({"instruction": "Q", "input": "C", "output": "A"}, ("instruction", "output", "input")),
        ({"instruction": "Q", "prompt": "P", "output": "A"}, None),
        (
            {"instruction": "Q", "output": "A", "context": "C", "input": "D"},
            ("instruction", "output", "input"),
        ),
        ({"input": "Q", "target": "A"}, ("input", "target", None)),
        ({"query": "Q", "solution": "A"}, ("query", "solution", None)),
    ):
        if expected is None:
            with pytest.raises(ValueError, match=r"data\.ambiguous_shape\(num_ways=2, "):
                recognise_shape(rows(row), DataConfig())
            continue
        found = recognise_shape(rows(row), DataConfig()).columns
        assert (found["prompt"], found["answer"], found.get("context")) == expected
    as_prompt = DataConfig(shape="prompt")
    found = recognise_shape(rows({"instruction": "x", "input": "Q", "output": "A"}), as_prompt)
    assert found.columns["prompt"] == "input"
    prompted = DataConfig(shape="qa", prompt_column="p", answer_column="a")
    assert recognise_shape(names("p", "a", "context"), prompted).name == "qa"


def test_a_column_inside_an_object_can_be_named() -> None:
    sample = rows({"t": {"q": "Q", "a": "A"}, "x": "y"})
    request = DataConfig(prompt_column="t.q", answer_column="t.a")
    assert recognise_shape(sample, request).columns == {"prompt": "t.q", "answer": "t.a"}
    wrong = DataConfig(prompt_column="t.p", answer_column="t.a")
    with pytest.raises(ValueError, match=r"setting=data\.prompt_column, .*known=.*t\.a"):
        recognise_shape(sample, wrong)
    with pytest.raises(ValueError, match=r"setting=data\.image_column, "):
        recognise_shape(sample, DataConfig(text_column="x", image_column="gone"))


def test_ambiguous_columns_are_shown_with_three_of_their_ways() -> None:
    sample = names("question", "query", "problem", "answer", "y" * 30)
    with pytest.raises(ValueError) as caught:
        recognise_shape(sample, DataConfig())
    ways = "; ".join(f"qa ({name}, answer)" for name in ("question", "query", "problem"))
    assert "data.ambiguous_shape(num_ways=3, columns=question, " in str(caught.value)
    assert f"ways={ways})" in str(caught.value)
    below = names("question", "query", "answer", "context")
    with pytest.raises(ValueError, match=r"ways=qa \(question, answer\); qa \(query, answer\)\)"):
        recognise_shape(below, DataConfig())
    more = names("question", "query", "answer", "response")
    with pytest.raises(ValueError, match=r"num_ways=4, ") as caught:
        recognise_shape(more, DataConfig())
    assert str(caught.value).count("; ") == 2
