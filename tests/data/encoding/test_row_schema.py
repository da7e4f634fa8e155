"""Every shape becomes the same kind of conversation; rows that do not fit say why."""

import json
from datetime import date
from typing import Any

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.encoding.row_schema import RowSchema, ShapeError, are_tools, with_context
from infrastructure.data.encoding.schema_detection import recognise_shape
from infrastructure.data.readers import rows as reasons
from infrastructure.data.readers.rows import BadRow, Conversation, Label, Row, Turn

PAIR = RowSchema("qa", {"prompt": "question", "answer": "answer"}, "")
CHAT = RowSchema("messages", {"chat": "messages"}, "")


def row(**values: Any) -> Row:
    return Row(values, "a.jsonl", 7)


def turns(shape: RowSchema, **values: Any) -> list[tuple[str, str]]:
    conversation = shape.convert(row(**values))
    assert isinstance(conversation, Conversation)
    return [(turn.role, turn.text) for turn in conversation.turns]


USER = {"role": "user", "content": "Q"}
MESSAGES = [USER, {"role": "assistant", "content": "A"}]
SHARED = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
ALPACA = {"instruction": "Q", "output": "A"}
QA = {"question": "Q", "answer": "A"}
TURNS = [("user", "Q"), ("assistant", "A")]
JOINED = [("user", "Q\n\nC"), ("assistant", "A")]
HELD = "Read this: C. Q"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "Q", "completion": "A"}, TURNS),
        (QA, TURNS),
        ({"Question": "Q", "Answer": "A"}, TURNS),
        ({"input": "Q", "output": "A"}, TURNS),
        (ALPACA, TURNS),
        (ALPACA | {"input": ""}, TURNS),
        (ALPACA | {"input": "C"}, JOINED),
        ({"instruction": "Q", "context": "C", "response": "A", "category": "x"}, JOINED),
        # the context stands below the question
        (QA | {"context": "C"}, JOINED),
        (QA | {"context": ["C", "D"]}, [("user", "Q\n\nC\n\nD"), ("assistant", "A")]),
        (QA | {"context": ""}, TURNS),
        # by chance or not: it is always written
        (QA | {"question": HELD, "context": "C"}, [("user", f"{HELD}\n\nC"), ("assistant", "A")]),
        ({"system_prompt": "S", "question": "Q", "response": "A"}, [("system", "S"), *TURNS]),
        ({"system_prompt": "", "question": "Q", "response": "A"}, TURNS),
        ({"messages": MESSAGES}, TURNS),
        ({"messages": json.dumps(MESSAGES)}, TURNS),  # as CSV and HDF5 hold it
        ({"conversations": SHARED, "id": "1"}, TURNS),
        ({"prompt": MESSAGES[:1], "completion": MESSAGES[1:]}, TURNS),
        ({"prompt": MESSAGES[:1], "completion": "A"}, TURNS),
        ({"text": "T"}, [("text", "T")]),
        (QA | {"answer": 72}, [("user", "Q"), ("assistant", "72")]),
    ],
)
def test_rows_of_every_shape_become_turns(
    values: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert turns(recognise_shape([row(**values)], DataConfig()), **values) == expected


def test_a_named_context_stands_below_the_question() -> None:
    values = QA | {"passage": "C"}
    request = DataConfig(context_column="passage")
    assert turns(recognise_shape([row(**values)], request), **values) == JOINED


def test_what_follows_the_last_answer_is_kept_and_teaches_nothing() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "Q"}]},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "unanswered"},
    ]
    found = CHAT.convert(row(messages=messages))
    assert isinstance(found, Conversation)
    assert [(turn.role, turn.text) for turn in found.taught] == [("system", "S"), *TURNS]
    assert found.turns[-1].text == "unanswered"
    assert (found.answer.text, found.prompt[-1].text) == ("A", "Q")
    assert found.turns[1].fields == ""  # parts of text alone are a text
    cut = CHAT.convert(row(messages=messages[:-1]))
    assert isinstance(cut, Conversation)
    assert found.pairs() == cut.pairs()  # they teach the same


def test_a_message_that_is_not_to_be_trained_on() -> None:
    for mark in ({"weight": 0}, {"train": False}):
        messages = [USER, {"role": "assistant", "content": "A", **mark}, USER]
        found = CHAT.convert(row(messages=[*messages, {"role": "assistant", "content": "B"}]))
        assert isinstance(found, Conversation)
        assert [found.is_learnt(n) for n in range(4)] == [True, False, True, True]
        assert Conversation.from_json(found.to_json()) == found
        plain = CHAT.convert(
            row(messages=[USER, {"role": "assistant", "content": "A"}, USER, messages[1]])
        )
        assert isinstance(plain, Conversation)
        assert plain.last_answer == 1  # the one that is trained on
        assert plain.pairs() != found.pairs()


def test_what_else_a_row_holds_goes_to_the_template() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "name": None}
    answer = {"role": "assistant", "content": "1", "reasoning_content": "easy"}
    tools = [{"type": "function", "function": {"name": "add"}}]
    messages = [USER, message, {"role": "tool", "content": "1"}, answer]
    for given in (tools, json.dumps(tools)):
        values = {"messages": messages, "tools": given, "system": "Be exact."}
        values["chat_template_kwargs"] = {"enable_thinking": False}
        shape = recognise_shape([row(**values)], DataConfig())
        found = shape.convert(row(**values))
        assert isinstance(found, Conversation)
        assert found.messages() == [
            {"role": "system", "content": "Be exact."},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "1"},
            answer,
        ]
        options = {"tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
        assert json.loads(found.inputs) == options
        assert Conversation.from_json(found.to_json()) == found
        assert shape.used >= values.keys()


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def calls_of(message: dict[str, Any]) -> list[Any]:
    """The tool calls of the row's second message, as a chat template is given them."""
    answer = {"role": "assistant", "content": "1"}
    tool = {"role": "tool", "content": "1"}
    key = "messages" if "role" in message else "conversations"
    rest = [USER, message, tool, answer]
    if key == "conversations":
        rest = [{"from": m.get("role", m.get("from")), "value": m.get("content")} for m in rest]
        rest[1] = message
    shape = recognise_shape([row(**{key: rest})], DataConfig())
    found = shape.convert(row(**{key: rest}))
    assert isinstance(found, Conversation), found
    assert found.turns[1].role == "assistant"
    assert found.turns[1].message()["content"] is None
    calls: list[Any] = found.turns[1].message()["tool_calls"]
    return calls


def test_arguments_of_calls_are_objects_however_they_are_written() -> None:
    """A template would quote JSON text once more; OpenAI and ShareGPT write it so."""
    message = {"role": "assistant", "content": None}
    bare = CALL["function"]
    text = {**CALL, "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert calls_of({**message, "tool_calls": [CALL]}) == [CALL]
    assert calls_of({**message, "tool_calls": [text]}) == [CALL]
    assert calls_of({**message, "tool_calls": [bare]}) == [bare]
    nothing = {"name": "now", "arguments": ""}
    assert calls_of({**message, "tool_calls": [nothing]}) == [{"name": "now", "arguments": {}}]
    assert calls_of({"from": "function_call", "value": json.dumps(bare)}) == [bare]
    assert calls_of({"from": "function_call", "value": json.dumps([bare, bare])}) == [bare, bare]


def test_a_message_keeps_its_text_beside_its_calls_and_other_fields() -> None:
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [CALL["function"]]}
    answer |= {"day": date(2024, 1, 2), "word": "é", "none": None}
    found = CHAT.convert(row(messages=[USER, answer]))
    assert isinstance(found, Conversation)
    call = '{"name": "add", "arguments": {"a": 1}}'
    fields = f'{{"tool_calls": [{call}], "day": "2024-01-02", "word": "é"}}'
    assert found.turns[1] == Turn("assistant", "I look.", fields)


def test_tools_are_objects_each_perhaps_as_json_text() -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    for given in ([tool], json.dumps([tool]), [json.dumps(tool)]):
        values = {"messages": [USER, {"role": "assistant", "content": "A"}], "tools": given}
        found = recognise_shape([row(**values)], DataConfig()).convert(row(**values))
        assert isinstance(found, Conversation)
        assert json.loads(found.inputs) == {"tools": [tool]}
    for wrong in ([{"description": "no name"}], [tool, {"description": "no name"}]):
        values["tools"] = wrong
        bad = recognise_shape([row(**values)], DataConfig()).convert(row(**values))
        assert isinstance(bad, BadRow)
        assert bad.detail == "data.tools_without_names(column=tools)"


def test_the_last_answer_alone() -> None:
    turns = (Turn("user", "Q"), Turn("assistant", "A", is_learnt=False), Turn("user", "R"))
    found = Conversation((*turns, Turn("assistant", "B"), Turn("user", "S"))).with_last_answer
    assert [found.is_learnt(number) for number in range(4)] == [False, False, False, True]
    assert found.last_answer == 3
    assert len(found.turns) == 5


def test_a_prompt_of_messages_is_given() -> None:
    prompt = [USER, {"role": "assistant", "content": "given"}, USER]
    completion = [{"role": "assistant", "content": "A"}]
    shape = recognise_shape([row(prompt=prompt, completion=completion)], DataConfig())
    found = shape.convert(row(prompt=prompt, completion=completion))
    assert isinstance(found, Conversation)
    assert [found.is_learnt(n) for n in range(4)] == [False, False, False, True]


def test_a_conversation_keeps_place_and_task() -> None:
    shape = RowSchema("qa", PAIR.columns, "", task_column="kind")
    found = shape.convert(row(question="Q", answer="A", kind="sum", level=3))
    assert found == Conversation((Turn("user", "Q"), Turn("assistant", "A")), "sum", "a.jsonl", 7)
    assert Conversation.from_json(found.to_json()) == found
    missing = shape.convert(row(question="Q", answer="A"))
    assert isinstance(missing, Conversation)
    assert missing.task == ""


EMPTY = "data.value_empty(where=data.place_column(column={}))"
SECOND = "where=data.place_message(number=2, column=messages)"
BAD_PAIRS: list[tuple[dict[str, Any], str, str]] = [
    ({"question": "Q"}, reasons.MISSING_COLUMN, "data.column_missing(column=answer)"),
    ({"question": "Q", "answer": ""}, reasons.EMPTY, EMPTY.format("answer")),
    ({"question": " \n", "answer": "A"}, reasons.EMPTY, EMPTY.format("question")),
    ({"question": "Q", "answer": None}, reasons.EMPTY, EMPTY.format("answer")),
    (
        {"question": "Q", "answer": 0.5},
        reasons.WRONG_TYPE,
        "kind=a number, advice=data.quote_number()",
    ),
    ({"question": "Q", "answer": True}, reasons.WRONG_TYPE, "a truth value"),
    ({"question": {"a": 1}, "answer": "A"}, reasons.WRONG_TYPE, "an object"),
    ({"question": "Q", "answer": ["A"]}, reasons.WRONG_TYPE, "a list"),
    ({"question": "Q", "answer": "\ud800"}, reasons.HALF_CHARACTER, "answer"),
]
BAD_CHATS: list[tuple[Any, str, str]] = [
    ([], reasons.EMPTY, "data.column_without_messages(column=messages)"),
    ("Q", reasons.WRONG_TYPE, "data.column_not_list(column=messages, kind=text)"),
    ("[1", reasons.BROKEN_JSON, "messages"),
    ([USER], reasons.NOT_SUPERVISED, "data.no_assistant_message()"),
    ([USER, "A"], reasons.WRONG_TYPE, f"data.message_not_object({SECOND}, kind=text)"),
    ([USER, {"content": "A"}], reasons.MISSING_COLUMN, f"data.message_without_role({SECOND})"),
    (
        [USER, {"role": "wizard", "content": "A"}],
        reasons.WRONG_TYPE,
        f"data.message_role_unknown({SECOND}, role=wizard)",
    ),
    ([USER, {"role": "assistant", "content": ""}], reasons.EMPTY, f"data.value_empty({SECOND})"),
    ([MESSAGES[1], USER | {"content": " "}], reasons.EMPTY, f"data.value_empty({SECOND})"),
    ([USER, {"role": "assistant", "content": None}], reasons.EMPTY, f"data.value_empty({SECOND})"),
    (
        [USER, {"role": "assistant", "content": None}, *MESSAGES],
        reasons.EMPTY,
        f"data.value_empty({SECOND})",
    ),
    *(
        (
            [USER, {"role": "assistant", "content": None, "tool_calls": calls}],
            reasons.WRONG_TYPE,
            f"data.calls_without_names({SECOND})",
        )
        for calls in ([{}], [{"name": "f"}, {}], 5, {"name": "f"})
    ),
    (
        [USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{a"}]}],
        reasons.BROKEN_JSON,
        f"data.tool_arguments_not_json(name=f, {SECOND},",
    ),
    (
        [USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}],
        reasons.WRONG_TYPE,
        f"data.tool_arguments_not_object(name=f, {SECOND}, kind=a list)",
    ),
    (
        [USER, {"role": "function_call", "content": "f(1)"}],
        reasons.WRONG_TYPE,
        f"data.calls_without_names({SECOND})",
    ),
    (
        [USER, {"role": "assistant", "content": "A", "function_call": {"name": "f"}}],
        reasons.WRONG_TYPE,
        f"data.function_call_replaced({SECOND})",
    ),
    (
        [USER, {"role": "assistant", "content": "A", "weight": 0.5}],
        reasons.WRONG_TYPE,
        f"data.weight_not_0_or_1(key=weight, {SECOND}, value=0.5)",
    ),
    (
        [{"role": "user", "content": [{"type": "audio"}]}],
        reasons.WRONG_TYPE,
        "data.message_not_only_text(where=data.place_message(number=1, column=messages))",
    ),
    (
        [
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "audio"}]},
        ],
        reasons.WRONG_TYPE,
        f"data.message_not_only_text({SECOND})",
    ),
]


@pytest.mark.parametrize(("values", "reason", "detail"), BAD_PAIRS)
def test_a_pair_that_does_not_fit(values: dict[str, Any], reason: str, detail: str) -> None:
    found = PAIR.convert(row(**values))
    assert isinstance(found, BadRow)
    assert (found.place, found.reason) == ("a.jsonl:7", reason)
    assert detail in found.detail
    assert found.excerpt.startswith('{"question"')


@pytest.mark.parametrize(("messages", "reason", "detail"), BAD_CHATS)
def test_a_chat_that_does_not_fit(messages: Any, reason: str, detail: str) -> None:
    found = CHAT.convert(row(messages=messages))
    assert isinstance(found, BadRow)
    assert found.reason == reason
    assert detail in found.detail


def prompt_of(shape: RowSchema, **values: Any) -> Any:
    """What a row asks with, as messages; of one that asks nothing the reason."""
    try:
        return [turn.message() for turn in shape.prompt_turns(values)]
    except ShapeError as error:
        return error.reason


CHOOSING = RowSchema("qa", {"prompt": "question", "answer": "answer", "choices": "options"}, "")


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["two", "three"], ["A. two", "B. three"]),
        ({"text": ["two", "three"], "label": ["x", 7]}, ["x. two", "7. three"]),
        ({"text": ["two", "three"], "label": ["x"]}, ["A. two", "B. three"]),
        ({"text": ["two", "three"]}, ["A. two", "B. three"]),
        ({"P": "two", "Q": "three"}, ["P. two", "Q. three"]),
    ],
)
def test_the_choices_stand_below_the_question_and_the_right_one_answers(
    options: Any, lines: list[str]
) -> None:
    prompt_given = f"Q\n\n{lines[0]}\n{lines[1]}"
    labels = [line.partition(".")[0] for line in lines]
    for number, line in enumerate(lines):
        for answer in (number, labels[number], Label("name", number), Label(labels[number], 9)):
            found = turns(CHOOSING, question="Q", options=options, answer=answer)
            assert found == [("user", prompt_given), ("assistant", line)]
    below = RowSchema("qa", {**CHOOSING.columns, "context": "c"}, "")
    found = turns(below, question="Q", options=options, answer=0, c="C")
    assert found[0] == ("user", f"Q\n\nC\n\n{lines[0]}\n{lines[1]}")
    for wrong in (2, -1, True, None, "Z", Label("name", 2), ["A"]):
        bad = CHOOSING.convert(row(question="Q", options=options, answer=wrong))
        assert isinstance(bad, BadRow)
        unknown = "data.choice_unknown(answer=answer, column=options)"
        assert (bad.reason, bad.detail) == (reasons.WRONG_TYPE, unknown)


CHOICES_MISSING = "data.choices_missing(column=options)"


@pytest.mark.parametrize("options", ["two", [], [1, 2], ["two", 3], {}, None, {"text": "two"}])
def test_without_choices_a_row_that_needs_them_is_set_aside(options: Any) -> None:
    for answer in (0, "A"):
        bad = CHOOSING.convert(row(question="Q", options=options, answer=answer))
        assert isinstance(bad, BadRow)
        assert (bad.reason, bad.detail) == (reasons.WRONG_TYPE, CHOICES_MISSING)
    missing = CHOOSING.convert(row(question="Q", answer=0))
    assert isinstance(missing, BadRow)
    assert missing.reason == reasons.MISSING_COLUMN


def test_what_belongs_to_the_prompt_is_put_to_its_last_question() -> None:
    columns = {"prompt": "p", "answer": "a", "context": "c", "history": "h", "system": "s"}
    shape = RowSchema("prompt", columns, "")
    system, user, prompt_given = (
        {"role": r, "content": t} for r, t in (("system", "S"), ("user", "Q"), ("user", "R"))
    )
    answer = {"role": "assistant", "content": "A"}
    assert prompt_of(shape, p="Q") == [user]
    assert prompt_of(shape, p="Q", c=" \n", s=" ") == [user]
    with_context = {"role": "user", "content": "R\n\nC"}
    expected = [system, user, answer, with_context]
    assert prompt_of(shape, p="R", h=[["Q", "A"]], c="C", s="S") == expected
    assert prompt_of(shape, p=[user, answer, prompt_given], c="C", s="S") == expected
    assert prompt_of(shape, p=[system, user, answer, prompt_given], c="C", s="other") == expected
    assert prompt_of(shape, p=[user, answer], c="C") == [
        {"role": "user", "content": "Q\n\nC"},
        answer,
    ]
    assert prompt_of(shape, p=[system, answer]) == [system, answer]
    assert prompt_of(shape, p=[system, answer], c="C") == reasons.EMPTY
    parts = [{"type": "text", "text": "Q"}, {"type": "image"}]
    shown = prompt_of(shape, p=[{"role": "user", "content": parts}], c="C")
    assert shown == [{"role": "user", "content": [*parts, {"type": "text", "text": "\n\nC"}]}]
    assert prompt_of(shape, p=[user], h=[["Q"]]) == reasons.WRONG_TYPE
    other = shape.prompt_turns({"c": "C", "h": [["Q", "A"]]}, [Turn("user", "R")])
    assert [turn.message() for turn in other] == [user, answer, with_context]


def test_a_prompt_of_messages_may_be_answered_by_a_text_or_by_messages() -> None:
    shape = RowSchema("prompt", {"prompt": "p", "answer": "a"}, "")
    answer = {"role": "assistant", "content": "A"}
    tool = {"role": "tool", "content": "1"}
    for given in ("A", answer, [answer], {"text": "A"}, {"value": ["A", "B"]}):
        for prompt_given in ("Q", [USER]):
            found = shape.convert(row(p=prompt_given, a=given))
            assert isinstance(found, Conversation)
            assert [(turn.role, turn.text) for turn in found.turns] == TURNS
            assert found.num_given == (prompt_given != "Q")
    for wrong, prompt_given in (
        ([tool, answer], "Q"),
        ([USER], [USER]),
        (["A"], "Q"),
        ([1, answer], "Q"),
    ):
        bad = shape.convert(row(p=prompt_given, a=wrong))
        assert isinstance(bad, BadRow), wrong
    both = shape.convert(row(p=[USER], a=[tool, answer]))
    assert isinstance(both, Conversation)
    assert both.num_given == 1


def test_a_text_that_begins_like_a_list_is_a_text_beside_pictures() -> None:
    shape = RowSchema("qa", {"prompt": "p", "answer": "a", "pictures": "image"}, "")
    for texts in (("[1 apple", "A"), ("Q", "{no object")):
        found = shape.convert(row(p=texts[0], a=texts[1], image=None))
        assert isinstance(found, Conversation)
        assert [turn.text for turn in found.turns] == [*texts]
    seen = shape.convert(
        row(
            p=[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Q"}]}],
            a="A",
            image="a.png",
        )
    )
    assert isinstance(seen, Conversation)
    assert (seen.num_pictures, len(seen.pictures)) == (1, 1)
    assert seen.turns[0].parts == [{"type": "image"}, {"type": "text", "text": "Q"}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"name": "f"}], True),
        ({"name": "f"}, True),
        ('[{"name": "f"}]', True),
        (['{"name": "f"}'], True),
        (["hammer", '{"name": "f"}'], True),
        ("[broken", True),
        (["{broken"], True),
        ("hammer", False),
        (["hammer", "saw"], False),
        ('["hammer"]', False),
        (5, False),
        ([], False),
    ],
)
def test_tools_are_objects_and_words_are_not(value: Any, expected: bool) -> None:
    assert are_tools(value) is expected
    shape = recognise_shape([row(question="Q", answer="A", tools=value)], DataConfig())
    assert ("tools" in shape.columns) is expected


def test_lists_that_python_prints_are_read() -> None:
    printed = repr([USER, {"role": "assistant", "content": "it's"}])
    assert turns(CHAT, messages=printed) == [("user", "Q"), ("assistant", "it's")]
    bad = CHAT.convert(row(messages="[{'role': 'user' 'content'}]"))
    assert isinstance(bad, BadRow)
    assert bad.reason == reasons.BROKEN_JSON


@pytest.mark.parametrize("key", ["role", "from", "author"])
@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("system", ["system", "developer"]),
        ("user", ["user", "human", "prompter", "User"]),
        ("assistant", ["assistant", "gpt", "chatgpt", "bot", "chatbot", "ai", "model", "Chatbot"]),
        ("tool", ["tool", "function", "observation"]),
    ],
)
def test_roles_have_many_names(role: str, names: list[str], key: str) -> None:
    answer = {"role": "assistant", "content": "A"}
    for name in names:
        message = {key: name, "value" if key == "from" else "content": "T"}
        assert turns(CHAT, messages=[message, answer])[0] == (role, "T")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "user", "content": "a", "value": "b"}, "a"),
        ({"role": "user", "value": "b", "parts": [{"text": "c"}], "text": "d"}, "b"),
        ({"role": "user", "parts": [{"text": "c"}, "d", {"text": "e"}], "text": "f"}, "cde"),
        ({"role": "user", "text": "d"}, "d"),
        ({"author": "user", "text": "d"}, "d"),
        ({"role": "user", "from": "assistant", "content": "a"}, "a"),
        ({"from": "user", "value": "b", "content": "a"}, "b"),
        ({"role": "user", "content": 5}, "5"),
    ],
)
def test_the_text_of_a_message_is_under_the_key_that_comes_first(
    message: dict[str, Any], text: str
) -> None:
    found = turns(CHAT, messages=[message, {"role": "assistant", "content": "A"}])
    assert found == [("user", text), ("assistant", "A")]


@pytest.mark.parametrize(
    ("keys", "is_learnt"),
    [
        ({"weight": 1}, True),
        ({"weight": 0.0}, False),
        ({"train": True, "weight": 0}, False),
        ({"train": False, "weight": 1}, False),
        ({"train": None, "weight": None}, True),
        ({"loss": False}, False),
        ({"loss": True}, True),
        ({"loss": 0}, True),  # a loss that was measured
        ({"loss": 2.7}, True),
        ({"loss": None, "weight": 0}, False),
    ],
)
def test_any_of_three_keys_leaves_a_message_out(keys: dict[str, Any], is_learnt: bool) -> None:
    found = CHAT.convert(row(messages=[USER, {"role": "assistant", "content": "A", **keys}]))
    assert isinstance(found, Conversation)
    answer = found.turns[1]
    assert answer.is_learnt is is_learnt
    measured = {
        k: v for k, v in keys.items() if k == "loss" and not isinstance(v, bool) and v is not None
    }
    assert (json.loads(answer.fields) if answer.fields else {}) == measured


def test_values_that_are_null_are_not_given_to_the_template() -> None:
    columns = {"prompt": "q", "answer": "a", "tools": "tools", "options": "o"}
    shape = RowSchema("qa", columns, "")
    tool = {"name": "f"}
    for tools, options, inputs in (
        (None, {"x": None}, {}),
        ([], {}, {}),
        ([tool], {"x": None, "y": 0}, {"tools": [tool], "chat_template_kwargs": {"y": 0}}),
        ("[]", '{"z": false}', {"chat_template_kwargs": {"z": False}}),
    ):
        found = shape.convert(row(q="Q", a="A", tools=tools, o=options))
        assert isinstance(found, Conversation)
        assert (json.loads(found.inputs) if found.inputs else {}) == inputs
    for part, wrong, wanted in (("tools", {"a": 1}, "a list"), ("o", [1], "an object")):
        bad = shape.convert(row(q="Q", a="A", **{part: wrong}))
        assert isinstance(bad, BadRow)
        assert bad.reason == reasons.WRONG_TYPE
        assert bad.detail.startswith(f"data.column_of_wrong_type(column={part}, ")
        assert bad.detail.endswith(f"wanted={wanted})")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Be brief.", "Be brief."),
        ({"parts": [{"text": "Be"}, {"text": "brief."}]}, "Be\n\nbrief."),
        (["Be", {"text": "brief."}], "Be\n\nbrief."),
        (7, "7"),
        (" \n", None),
        ([], None),
        (None, None),
    ],
)
def test_a_system_message_may_come_in_parts(value: Any, text: str | None) -> None:
    shape = RowSchema("messages", {"chat": "messages", "system": "s"}, "")
    found = turns(shape, messages=MESSAGES, s=value)
    assert found == ([("system", text)] if text else []) + TURNS
    own = [{"role": "system", "content": "mine"}, *MESSAGES]
    assert turns(shape, messages=own, s=value) == [("system", "mine"), *TURNS]
    for wrong, kind in ((["a", 1], "a list"), ({"a": 1}, "an object")):
        bad = shape.convert(row(messages=MESSAGES, s=wrong))
        assert isinstance(bad, BadRow)
        assert bad.reason == reasons.WRONG_TYPE
        where = "where=data.place_column(column=s)"
        assert bad.detail == f"data.value_not_text({where}, kind={kind}, advice=)"


def test_columns_inside_objects_are_read_and_missed() -> None:
    shape = RowSchema("qa", {"prompt": "t.q", "answer": "t.x.a"}, "")
    assert shape.used == {"t", "t.q", "t.x.a", None}
    assert turns(shape, t={"q": "Q", "x": {"a": "A"}}) == TURNS
    assert turns(shape, **{"t.q": "Q", "t.x.a": "A"}) == TURNS  # a name may have a dot
    for held in ({"q": "Q"}, {"q": "Q", "x": "A"}, {"q": "Q", "x": {}}, {"q": "Q", "x": None}):
        bad = shape.convert(row(t=held))
        assert isinstance(bad, BadRow)
        assert bad.reason == reasons.MISSING_COLUMN
        assert bad.detail == "data.column_missing(column=t.x.a)"
    empty = shape.convert(row(t={"q": "Q", "x": {"a": None}}))
    assert isinstance(empty, BadRow)
    assert empty.reason == reasons.EMPTY


@pytest.mark.parametrize("column", ["answers", "Answers ", "t.answers", "answer"])
@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({"text": ["A", "B"]}, "A"),
        ({"value": "A", "text": "B"}, "A"),
        ({"value": [{"text": "A"}]}, "A"),
        (["A", "B"], "A"),
        ([{"text": "A"}, "B"], "A"),
        (["A", {"text": "B"}], "A"),
        ([], reasons.EMPTY),
        ({"text": []}, reasons.EMPTY),
        ({"other": "A"}, reasons.WRONG_TYPE),
    ],
)
def test_the_first_of_several_right_answers_is_learnt(column: str, value: Any, answer: str) -> None:
    """A list of answers is one under this name alone: elsewhere it may be anything."""
    shape = RowSchema("qa", {"prompt": "q", "answer": column}, "")
    held = {"t": {"answers": value}} if "." in column else {column: value}
    found = shape.convert(row(q="Q", **held))
    if column == "answer" and isinstance(value, list):
        answer = reasons.WRONG_TYPE
    got = found.reason if isinstance(found, BadRow) else found.answer.text
    assert got == answer


def test_earlier_rounds_are_pairs_of_texts() -> None:
    shape = RowSchema("qa", {"prompt": "q", "answer": "a", "history": "h"}, "")
    earlier = [("user", "R"), ("assistant", "B"), ("user", "S"), ("assistant", "C")]
    rounds = [["R", "B"], ["S", "C"]]
    for given in (rounds, json.dumps(rounds), repr(rounds)):
        assert turns(shape, q="Q", a="A", h=given) == earlier + TURNS
    for nothing in (None, [], "", "[]"):
        assert turns(shape, q="Q", a="A", h=nothing) == TURNS
    for wrong, reason in (
        ("R", reasons.WRONG_TYPE),
        (5, reasons.WRONG_TYPE),
        ([["R", "B", "S"]], reasons.WRONG_TYPE),
        ([["R", "B"], ["S"]], reasons.WRONG_TYPE),
        ([["R", "B"], "SC"], reasons.WRONG_TYPE),
        ([["R", None]], reasons.EMPTY),
        ([[" ", "B"]], reasons.EMPTY),
    ):
        bad = shape.convert(row(q="Q", a="A", h=wrong))
        assert isinstance(bad, BadRow)
        assert bad.reason == reason


def test_texts_by_turns_are_those_of_user_and_assistant() -> None:
    shape = RowSchema("messages", {"chat": "t", "turns": "t", "system": "s"}, "")
    assert turns(shape, t=["Q", "A", "R"], s="S") == [("system", "S"), *TURNS, ("user", "R")]
    assert turns(shape, t=json.dumps(["Q", "A"])) == TURNS
    assert turns(shape, t=MESSAGES) == TURNS  # of a row that is not like the others
    for wrong, detail in (
        (["Q", ""], "data.value_empty(where=data.place_message(number=2, column=t))"),
        ([" ", "A"], "data.value_empty(where=data.place_message(number=1, column=t))"),
        ("QA", "data.column_not_list(column=t, kind=text)"),
        (["Q", 5], "data.message_not_object(where=data.place_message(number=1, column=t), kind="),
    ):
        bad = shape.convert(row(t=wrong))
        assert isinstance(bad, BadRow)
        assert bad.detail.startswith(detail)
    alone = shape.convert(row(t=["Q"]))
    assert isinstance(alone, BadRow)
    assert alone.reason == reasons.NOT_SUPERVISED


@pytest.mark.parametrize("key", ["content", "value", "parts"])
def test_images_inside_messages_are_found_under_every_key_of_a_text(key: str) -> None:
    parts = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "Q"}]
    role = {"role": "user"} if key != "value" else {"from": "human"}
    other = {"role": "assistant"} if key != "value" else {"from": "gpt"}
    messages = [{**role, key: parts}, {**other, key: "A"}]
    name = "sharegpt" if key == "value" else "messages"
    found = RowSchema(name, {"chat": "m"}, "").convert(row(m=messages))
    assert isinstance(found, Conversation), found
    assert len(found.pictures) == found.num_pictures == 1
    alone = [{**role, key: parts[:1]}, messages[1]]
    found = RowSchema(name, {"chat": "m"}, "").convert(row(m=alone))
    assert isinstance(found, Conversation), found
    assert (found.turns[0].text, found.turns[0].parts) == ("", [{"type": "image"}])


IMAGE = {"type": "image"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def seen(columns: dict[str, str], **values: Any) -> tuple[list[Any], list[Any]] | str:
    """The parts of each message (its text if it has none) and the pictures; else the detail."""
    name = "messages" if "chat" in columns else "qa"
    found = RowSchema(name, {**columns, "pictures": "image"}, "").convert(row(**values))
    if isinstance(found, BadRow):
        assert found.reason == reasons.PICTURE
        return found.detail
    return [turn.parts or turn.text for turn in found.turns], [*found.pictures]


PAIRED = {"prompt": "q", "answer": "a"}
TWO = ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("question", "images", "parts"),
    [
        ("Q", TWO, [IMAGE, IMAGE, text("Q")]),
        ("Q", "a.png", [IMAGE, text("Q")]),
        ("Q", json.dumps(TWO), [IMAGE, IMAGE, text("Q")]),
        ("<image>\nQ<image>", TWO, [IMAGE, text("Q"), IMAGE]),
        ("a <image> b\n\n<image>\n", TWO, [text("a "), IMAGE, text(" b"), IMAGE]),
        ("<image><image>Q", TWO, [IMAGE, IMAGE, text("Q")]),
        ("<image>", None, "<image>"),
        ("Q", None, "Q"),
        ("Q", "", "Q"),
        ("Q", b"", "Q"),
        ("Q", [], "Q"),
    ],
)
def test_pictures_of_a_column_stand_at_their_marks_or_before_the_question(
    question: str, images: Any, parts: Any
) -> None:
    named = [] if not images else ["a.png"] if images == "a.png" else TWO
    assert seen(PAIRED, q=question, a="A", image=images) == ([parts, "A"], named)


def test_a_marked_text_loses_its_marks_and_keeps_its_other_fields() -> None:
    shape = RowSchema("messages", {"chat": "m", "pictures": "image"}, "")
    marked = {"role": "user", "content": "é<image>\nQ", "name": "ü"}
    found = shape.convert(row(m=[marked, MESSAGES[1]], image="a.png"))
    assert isinstance(found, Conversation)
    parts = '[{"type": "text", "text": "é"}, {"type": "image"}, {"type": "text", "text": "Q"}]'
    assert found.turns[0] == Turn("user", "éQ", f'{{"name": "ü", "content": {parts}}}')


@pytest.mark.parametrize(
    ("context", "expected"), [(None, "Q"), ("", "Q"), (" \n", "Q"), (" C", "Q\n\n C")]
)
def test_a_context_stands_in_a_paragraph_of_its_own(context: str | None, expected: str) -> None:
    assert with_context("Q", context) == expected


@pytest.mark.parametrize(
    ("question", "images", "num_marks", "count"),
    [("<image>Q", TWO, 1, 2), ("<image><image>Q", ["a.png"], 2, 1)],
)
def test_as_many_marks_as_pictures_are_needed(
    question: str, images: list[str], num_marks: int, count: int
) -> None:
    has = f"has=data.column_image_count(column=image, count={count})"
    detail = seen(PAIRED, q=question, a="A", image=images)
    assert detail == f"data.image_marks_mismatch(num_marks={num_marks}, {has})"


def test_pictures_of_a_column_go_to_the_parts_without_their_own() -> None:
    own = {"type": "input_image", "image_url": "own.png"}
    columns = {"chat": "messages"}
    first, later = {"role": "user", "content": "Q"}, {"role": "user", "content": "R"}
    answer = {"role": "assistant", "content": "A"}
    system = {"role": "system", "content": "S"}
    questioned = [{**first, "content": [own, {"type": "image_url"}, text("Q"), IMAGE]}, answer]
    shown = [[IMAGE, IMAGE, text("Q"), IMAGE], "A"]
    assert seen(columns, messages=questioned, image=TWO) == (shown, ["own.png", *TWO])
    two_rounds = [system, first, answer, later, answer]
    shown = ["S", [IMAGE, IMAGE, text("Q")], "A", "R", "A"]
    assert seen(columns, messages=two_rounds, image=TWO) == (shown, TWO)
    marked = [first, answer, {**later, "content": "<image>R<image>"}, answer]
    shown = ["Q", "A", [IMAGE, text("R"), IMAGE], "A"]
    assert seen(columns, messages=marked, image=TWO) == (shown, TWO)
    unasked = seen(columns, messages=[system, answer], image=TWO)
    assert unasked == "data.image_without_prompt(column=image)"
    for wrong, place in (
        ([5], "data.place_column(column=image)"),
        (["a.png", 5], "data.place_image(number=2, column=image)"),
    ):
        detail = seen(columns, messages=two_rounds, image=wrong)
        assert f"place={place}" in detail
    odd = [{**first, "content": [{"type": "image", "image": 5}, text("Q")]}, answer]
    assert "place=data.image_of_message(number=1, column=messages)" in seen(columns, messages=odd)
    noted = {"role": "assistant", "content": [IMAGE, text("<image>A")]}
    shown = ["Q", [IMAGE, text("<image>A")]]
    assert seen(PAIRED, q="Q", a=noted, image="a.png") == (shown, ["a.png"])
    both = PAIRED | {"answer": "m"}
    pair = {"q": [{**first, "content": [IMAGE, text("Q")]}], "m": [answer]}
    assert seen(both, **pair, image="a.png") == ([[IMAGE, text("Q")], "A"], ["a.png"])


def test_a_broken_call_is_named_with_its_key() -> None:
    shape = RowSchema("sharegpt", {"chat": "c"}, "")
    bad = shape.convert(row(c=[SHARED[0], {"from": "function_call", "value": "{'name' 'f'}"}]))
    assert isinstance(bad, BadRow)
    assert bad.reason == reasons.BROKEN_JSON
    where = "data.place_key(key=value, where=data.place_message(number=2, column=c))"
    assert bad.detail.startswith(f"data.value_neither_json_nor_python(where={where}, json_error=")


def test_a_broken_tool_is_named_with_its_number() -> None:
    shape = RowSchema("qa", {"prompt": "q", "answer": "a", "tools": "t"}, "")
    bad = shape.convert(row(q="Q", a="A", t=['{"name": "f"}', "{broken"]))
    assert isinstance(bad, BadRow)
    where = "where=data.place_tool(number=2, column=t)"
    assert bad.detail.startswith(f"data.value_neither_json_nor_python({where}, ")
    plain = shape.convert(row(q="Q", a="A", t="{broken"))
    assert isinstance(plain, BadRow)
    assert "where=data.place_column(column=t)" in plain.detail


def test_an_answer_needs_text_or_a_call_in_one_of_its_messages() -> None:
    worded, silent = {"role": "assistant", "content": "A"}, {"role": "assistant", "content": " "}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    for messages in ([USER, worded, USER, silent], [USER, silent, USER, called]):
        assert isinstance(CHAT.convert(row(messages=messages)), Conversation)
    bad = CHAT.convert(row(messages=[USER, silent, USER, silent, USER]))
    assert isinstance(bad, BadRow)
    assert bad.detail == "data.value_empty(where=data.place_message(number=4, column=messages))"


def test_a_bad_row_keeps_its_place_and_its_first_characters() -> None:
    found = PAIR.convert(Row({"question": "é", "answer": ""}, "b.csv", 9, offset=77))
    assert isinstance(found, BadRow)
    assert (found.source, found.line, found.offset) == ("b.csv", 9, 77)
    assert found.excerpt == '{"question": "\\u00e9", "answer": ""}'
    dated = PAIR.convert(row(answer="", day=date(2024, 1, 2)))
    assert isinstance(dated, BadRow)
    assert dated.excerpt == '{"answer": "", "day": "2024-01-02"}'


def test_what_a_template_is_given_is_text_that_json_has() -> None:
    shape = RowSchema("qa", {**PAIR.columns, "options": "o", "tools": "t"}, "")
    given = {"o": {"day": date(2024, 1, 2), "word": "é"}, "t": [{"name": "ü"}]}
    found = shape.convert(row(question="Q", answer="A", **given))
    assert isinstance(found, Conversation)
    options = '"chat_template_kwargs": {"day": "2024-01-02", "word": "é"}'
    assert found.inputs == f'{{"tools": [{{"name": "ü"}}], {options}}}'


def test_a_chat_and_a_text_have_no_prompt_of_their_own() -> None:
    assert CHAT.convert(row(messages=MESSAGES)) == Conversation(
        (Turn("user", "Q"), Turn("assistant", "A")), "", "a.jsonl", 7
    )
    assert RowSchema("text", {"text": "t"}, "").convert(row(t="T")) == Conversation(
        (Turn("text", "T"),), "", "a.jsonl", 7
    )


BEGINS_OTHERWISE = "data.answer_column_begins_otherwise(column=a)"
PLACED = "data.value_not_text(where=data.place_column(column={}), kind=a number, advice="


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        ({"h": "R"}, "data.history_not_pairs(column=h)"),
        ({"h": [["R", 0.5]]}, PLACED.format("h")),
        ({"c": 0.5}, PLACED.format("c")),
        ({"s": 0.5}, PLACED.format("s")),
        ({"s": "\ud800"}, "data.character_cut_in(where=data.place_column(column=s))"),
        ({"a": {"text": []}}, "data.column_without_answer(column=a)"),
        ({"a": [{"role": "tool", "content": "1"}, MESSAGES[1]]}, BEGINS_OTHERWISE),
        ({"a": [USER]}, BEGINS_OTHERWISE),
        ({"q": [USER], "a": [USER]}, "data.no_assistant_message()"),
        ({"q": MESSAGES[1:], "c": "C"}, "data.columns_without_prompt()"),
        ({"q": []}, "data.column_without_messages(column=q)"),
        (
            {"a": [{"role": "wizard"}]},
            "data.message_role_unknown(where=data.place_message(number=1, column=a), role=wizard)",
        ),
    ],
)
def test_a_detail_names_the_column_that_is_wrong(values: dict[str, Any], detail: str) -> None:
    columns = {"prompt": "q", "answer": "a", "context": "c", "history": "h", "system": "s"}
    bad = RowSchema("qa", columns, "").convert(row(**{"q": "Q", "a": "A", **values}))
    assert isinstance(bad, BadRow)
    assert bad.detail.startswith(detail)
