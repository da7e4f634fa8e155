"""Each text of a row is accounted for; the template is a function that leaves something out."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from infrastructure.training.data.encoding import row_accounting
from infrastructure.training.data.encoding.row_accounting import (
    CAUSE,
    WHOLE,
    Account,
    LeftOut,
    Missing,
    RowAccounting,
    reasoning_forms,
)
from infrastructure.training.data.readers.rows import Conversation, Turn

Path = tuple[str | int, ...]

FIND = {"city": "Rome", "days": 3, "near": {"unit": "km", "most": 2.5}, "tags": ["a", 4, True]}
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": FIND}},
    {"name": "stop", "arguments": {"when": "now"}},
]
CITY = {"type": "string", "description": "A city.", "enum": ["x", "y", 5]}
NEAR = {"type": "object", "properties": {"unit": {"type": "string"}}, "required": ["unit"]}
TAGS = {"type": "array", "items": {"type": "string", "description": "A tag."}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds.",
            "parameters": {
                "type": "object",
                "properties": {"city": CITY, "near": NEAR, "tags": TAGS},
                "required": ["city"],
            },
            "return": {"type": "string", "description": "The place."},
        },
    },
    {"name": "stop", "description": "Stops."},
]
PARTS = [{"type": "text", "text": "And "}, {"type": "image"}, {"type": "text", "text": "then?"}]
ROW = Conversation(
    (
        Turn("system", "Be brief."),
        Turn("user", "Where?"),
        Turn("assistant", "", json.dumps({"tool_calls": CALLS})),
        Turn("tool", "In Rome.", json.dumps({"tool_call_id": "call_1"})),
        Turn("assistant", "<think>so</think>Rome.", is_learnt=False),
        Turn("system", "Be kind."),
        Turn("user", "And then?", json.dumps({"content": PARTS})),
        Turn("assistant", "Milan.", json.dumps({"reasoning_content": "hm", "name": "x"})),
        Turn("user", "Thanks."),
    ),
    inputs=json.dumps({"tools": TOOLS}),
)


def written(conversation: Conversation) -> dict[str, Any]:
    given = json.loads(conversation.inputs) if conversation.inputs else {}
    return {"messages": conversation.messages(), **given}


def without(path: Path) -> Callable[[Conversation], str]:
    """Writes a row as JSON without the entry at a path, of whose numbers one counts the entries of
    an object, too."""

    def write(conversation: Conversation) -> str:
        whole: Any = written(conversation)
        at = whole
        for step in path[:-1]:
            at = at[step] if isinstance(at, list) or isinstance(step, str) else [*at.values()][step]
        last = path[-1] if path else None
        if path and isinstance(at, dict) and isinstance(last, int):
            last = [*at][last]
        if path:
            del at[last]
        return json.dumps(whole, ensure_ascii=False)

    return write


def account(write: Callable[[Conversation], str], row: Conversation = ROW, source: str = "") -> Any:
    return RowAccounting(write, [source]).account(row, write(row))


def test_a_row_that_is_written_whole_loses_nothing() -> None:
    assert account(without(())) == WHOLE == Account()


CALL: Path = ("messages", 2, "tool_calls", 0, "function")
FIRST: Path = ("tools", 0, "function")
PROPERTIES: Path = (*FIRST, "parameters", "properties")


def in_words(missing: Missing) -> str:
    """All that is known of a missing text, on a line."""
    kind = missing.kind.removesuffix(" of a tool").removesuffix(" of a call")
    what = missing.what.replace(" of the call of 'find' in message 3 (call 1)", " of FIND")
    what = what.replace(" of the call of 'stop' in message 3 (call 2)", " of STOP").replace(
        " of tool 'find'", " of TOOL"
    )
    state = "learned" if missing.is_learnt else "read"
    state += " in part" if missing.is_cut else ""
    return f"{missing.message}: {kind} | {what} | {missing.text} | {state}"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            ("messages", 0, "content"),
            ["1: system message | the system message | Be brief. | read"],
        ),
        (
            ("messages", 1, "content"),
            ["2: user message | the text of message 2 (user) | Where? | read"],
        ),
        (
            (*CALL, "name"),
            ["3: call | the name of FIND | find | learned"],
        ),
        (
            (*CALL, "arguments", 0),
            ["3: argument | argument 'city' of FIND | Rome | learned"],
        ),
        (
            (*CALL, "arguments", 1),
            ["3: argument | argument 'days' of FIND | 3 | learned"],
        ),
        (
            (*CALL, "arguments", 2),
            [
                '3: argument | argument \'near\' of FIND | {"unit": "km", "most": 2.5} | learned',
                "3: argument | argument 'near.most' of FIND | 2.5 | learned",
                "3: argument | argument 'near.unit' of FIND | km | learned",
            ],
        ),
        (
            (*CALL, "arguments", 2, 0),
            ["3: argument | argument 'near.unit' of FIND | km | learned"],
        ),
        (
            (*CALL, "arguments", 2, 1),
            ["3: argument | argument 'near.most' of FIND | 2.5 | learned"],
        ),
        (
            (*CALL, "arguments", 3),
            ["3: argument | argument 'tags' of FIND | [\"a\", 4, true] | learned"],
        ),
        (
            (*CALL, "arguments", 3, 0),
            ["3: argument | argument 'tags' of FIND | [\"a\", 4, true] | learned in part"],
        ),
        (
            (*CALL, "arguments", 3, 1),
            ["3: argument | argument 'tags' of FIND | [\"a\", 4, true] | learned in part"],
        ),
        (("messages", 2, "tool_calls", 0, "id"), []),
        (
            ("messages", 2, "tool_calls", 1, "name"),
            ["3: call | the name of STOP | stop | learned"],
        ),
        (
            ("messages", 2, "tool_calls", 1, "arguments", 0),
            ["3: argument | argument 'when' of STOP | now | learned"],
        ),
        (
            ("messages", 3, "content"),
            ["4: tool result | the text of message 4 (tool) | In Rome. | read"],
        ),
        (("messages", 3, "tool_call_id"), []),
        (
            ("messages", 4, "content"),
            [
                "5: reasoning | the reasoning of message 5 | so | read",
                "5: answer | the text of message 5 (assistant) | Rome. | read",
            ],
        ),
        (
            ("messages", 5, "content"),
            ["6: system message | the text of message 6 (system) | Be kind. | read"],
        ),
        (
            ("messages", 6, "content", 0),
            ["7: user message | the text of message 7 (user) | And then? | read in part"],
        ),
        (
            ("messages", 6, "content"),
            ["7: user message | the text of message 7 (user) | And then? | read"],
        ),
        (
            ("messages", 7, "content"),
            ["8: answer | the text of message 8 (assistant) | Milan. | learned"],
        ),
        (
            ("messages", 7, "reasoning_content"),
            ["8: reasoning | the reasoning of message 8 | hm | learned"],
        ),
        (("messages", 7, "name"), []),
        (
            ("messages", 8, "content"),
            ["9: message after the last answer | the text of message 9 (user) | Thanks. | read"],
        ),
        ((*FIRST, "name"), ["0: tool | the name of TOOL | find | read"]),
        (
            (*FIRST, "description"),
            ["0: description | the description of TOOL | Finds. | read"],
        ),
        (
            (*PROPERTIES, 0),
            [
                "0: description | the description of 'city' of TOOL | A city. | read",
                '0: description | the choices of \'city\' of TOOL | ["x", "y", 5] | read',
            ],
        ),
        (
            (*PROPERTIES, 0, "description"),
            ["0: description | the description of 'city' of TOOL | A city. | read"],
        ),
        (
            (*PROPERTIES, 0, "enum"),
            ['0: description | the choices of \'city\' of TOOL | ["x", "y", 5] | read'],
        ),
        (
            (*PROPERTIES, 0, "enum", 1),
            ['0: description | the choices of \'city\' of TOOL | ["x", "y", 5] | read in part'],
        ),
        ((*PROPERTIES, 0, "enum", 2), []),
        (
            (*PROPERTIES, 1),
            [
                "0: description | parameter 'near' of TOOL | near | read",
                "0: description | parameter 'unit' of 'near' of TOOL | unit | read",
            ],
        ),
        ((*PROPERTIES, 1, "properties", 0), []),
        ((*PROPERTIES, 1, "required"), []),
        (
            (*PROPERTIES, 2, "items", "description"),
            ["0: description | the description (items) of 'tags' of TOOL | A tag. | read"],
        ),
        (
            (*PROPERTIES, 2, "items"),
            ["0: description | the description (items) of 'tags' of TOOL | A tag. | read"],
        ),
        (
            (*FIRST, "return", "description"),
            ["0: description | the description (return) of TOOL | The place. | read"],
        ),
        ((*FIRST, "parameters", "required"), []),
        (("tools", 1, "name"), ["0: tool | the name of tool 'stop' | stop | read"]),
        (
            ("tools", 1, "description"),
            ["0: description | the description of tool 'stop' | Stops. | read"],
        ),
    ],
)
def test_what_a_template_leaves_out_is_missed_and_nothing_else(
    path: Path, expected: list[str]
) -> None:
    found = account(without(path))
    assert [in_words(one) for one in found.missing] == expected
    assert not found.undetermined
    assert found.unlearnable == tuple(one for one in found.missing if one.is_learnt)
    # by itself, where the template looks into a text
    look = without(path)

    def write(conversation: Conversation) -> str:
        return look(conversation) + ("!" if conversation.turns[1].text == "Where?" else "")

    alone = account(write, source="{{ 'Where?' }}")
    assert {one.what for one in alone.missing} <= {one.what for one in found.missing}
    texts = {one.text for one in found.missing if one.kind != "argument of a call"}
    assert texts - {one.text for one in alone.missing} <= {"near", "unit", "Where?"}


def test_a_prompt_alone_has_no_message_after_the_last_answer() -> None:
    """All of a row's messages are given: none of them follows an answer that is learned."""
    turns = (*ROW.turns[:2], Turn("assistant", "Rome."), Turn("user", "Thanks."))
    for num_given, kinds in ((0, AFTER), (3, AFTER), (4, ["user message"]), (5, ["user message"])):
        row = Conversation(turns, num_given=num_given)
        found = account(without(("messages", 3)), row)
        assert [one.kind for one in found.missing] == kinds
        answer = account(without(("messages", 2)), row).missing[0]
        assert (answer.kind, answer.is_learnt) == ("answer", num_given < 3)


AFTER = ["message after the last answer"]


def upper(*numbers: int) -> Callable[[Conversation], str]:
    """Writes the messages of these numbers in capitals."""

    def write(conversation: Conversation) -> str:
        texts = (turn.text for turn in conversation.turns)
        return "|".join(
            text.upper() if number in numbers else text for number, text in enumerate(texts)
        )

    return write


def test_undetermined_texts_are_named_and_others_are_found() -> None:
    turns = tuple(Turn(("user", "assistant")[n % 2], f"text {n}") for n in range(80))
    row = Conversation(turns)
    found = account(upper(3), row)
    assert not found.missing
    names = [f"the text of message {n + 1} ({turn.role})" for n, turn in enumerate(turns)]
    assert found.undetermined == (*names[64:], names[3])
    few = Conversation(turns[:64])
    assert account(upper(3, 63), few).undetermined == (names[3], names[63])

    def short(conversation: Conversation) -> str:
        return upper(3)(Conversation(conversation.turns[:20]))

    found = account(short, Conversation(turns[:24]))
    assert [one.message for one in found.missing] == [21, 22, 23, 24]
    assert found.undetermined == (names[3],)


def test_a_template_that_refuses_marks_leaves_all_undetermined() -> None:
    row = Conversation((Turn("user", "a"), Turn("assistant", "b")))

    def write(conversation: Conversation) -> str:
        if conversation != row:
            raise RuntimeError
        return "a b"

    found = account(write, row)
    assert not found.missing
    assert len(found.undetermined) == 2
    foreign = account(lambda conversation: "\U000fabcd", row)  # a mark of no text
    assert len(foreign.undetermined) == 2


def twice_as_json(text: str) -> str:
    return json.dumps(json.dumps(text, ensure_ascii=False), ensure_ascii=False)


@pytest.mark.parametrize("change", [str.strip, repr, json.dumps, twice_as_json, "<{}>".format])
def test_numbers_and_escapes_are_found_however_they_are_written(change: Any) -> None:
    arguments = {"n": 7, "f": -0.25, "big": 10**20, "s": 'it\'s "so" – 你\n', "e": ""}
    called = [{"function": {"name": "do", "arguments": arguments}}]
    turns = (Turn("user", " a\n"), Turn("assistant", "", json.dumps({"tool_calls": called})))

    def write(conversation: Conversation) -> str:
        (call,) = conversation.turns[1].message()["tool_calls"]
        held = call["function"]["arguments"]
        shown = [change(v) if isinstance(v, str) else str(v) for v in held.values()]
        return "; ".join([conversation.turns[0].text, call["function"]["name"], *held, *shown])

    assert account(write, Conversation(turns)) == WHOLE


@pytest.mark.parametrize(
    ("text", "fields", "source", "expected"),
    [
        # in another field, which the template names
        ("c", {"reasoning": " so "}, "m.thinking", [("c", {"thinking": "so"})]),
        (" c", {"thinking": "so"}, "m.reasoning", [(" c", {"reasoning": "so"})]),
        ("c", {"thinking": "so"}, "m.reasoning_content", [("c", {"reasoning_content": "so"})]),
        ("c", {"thinking": "so"}, "m.thinking", []),
        ("c", {"thinking": "so"}, "my_reasoning, thinkings, think", []),
        (
            "c",
            {"thinking": "so", "reasoning": "or", "name": "x"},
            "reasoning reasoning_content",
            [
                ("c", {"name": "x", "reasoning_content": "or"}),
                ("c", {"name": "x", "reasoning": "or"}),
            ],
        ),
        # in tags, and out of them
        ("\nc", {"reasoning": "\nso"}, "</think>", [("<think>\nso\n</think>\n\nc", {})]),
        (
            "",
            {"reasoning": "so", "content": None, "tool_calls": []},
            "</think>",
            [("<think>\nso\n</think>\n\n", {"tool_calls": []})],
        ),
        ("<think> so </think>\n\n c", {}, "thinking", [("c", {"thinking": "so"})]),
        ("so\nit</think>c", {}, "thinking", [("c", {"thinking": "so\nit"})]),
        ("\n<think>so</think>c", {}, "thinking", [("c", {"thinking": "so"})]),
        ("<think>so</think>c", {}, "</think>", [("<think>\nso\n</think>\n\nc", {})]),
        ("<think>\nso\n</think>\n\nc", {}, "</think>", []),
        ("<think>so</think>c", {}, "<think>", []),
        ("<think>a</think>c", {"reasoning": "b"}, "thinking", [("c", {"thinking": "b"})]),
        # nothing to move
        ("c", {}, "thinking </think>", []),
        ("c", {"reasoning": None}, "thinking </think>", []),
        ("c", {"reasoning": "so", "content": [{"type": "text", "text": "c"}]}, "thinking", []),
    ],
)
def test_reasoning_is_moved_where_a_template_reads_it(
    text: str, fields: dict[str, Any], source: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    held = json.dumps(fields) if fields else ""
    question = Turn("user", text, held)  # is no answer
    row = Conversation((question, Turn("assistant", text, held), Turn("assistant", "d")))
    forms = [*reasoning_forms(row, source)]
    assert [form.turns[0] for form in forms] == [question] * len(forms)
    moved = [form.turns[1] for form in forms]
    assert [(turn.text, turn.fields) for turn in moved] == [
        (text, json.dumps(fields, ensure_ascii=False) if fields else "")
        for text, fields in expected
    ]
    assert all(form.turns[2] == row.turns[2] for form in forms)


def test_what_rows_lose_is_counted_by_kind_with_the_first() -> None:
    system = Missing("system message", "the system message", "Be\nbrief." + "x" * 99, False)
    part = Missing("answer", "the text of message 2", "Rome.", True, is_cut=True)
    after = Missing(AFTER[0], "the text of message 3", "Thanks.", False)
    left_out = LeftOut()
    left_out.add("a:1", [part, part, after])
    left_out.add("a:2", [system])
    left_out.add("a:3", [system, Missing("answer", "other", "x", True)])
    left_out.add("a:4", [system])
    left_out.add("a:5", [])
    assert left_out.rows == {"answer": 2, AFTER[0]: 1, "system message": 3}
    lines = left_out.lines()
    assert "system message of 3 rows, such as the system message ('Be" in lines[0]
    assert lines[0].endswith(f"of a:2, {CAUSE}")
    assert "x" * 70 not in lines[0]
    assert "answer of 2 rows, such as part of the text of message 2 ('Rome.') of a:1" in lines[1]
    assert lines[2].endswith(
        "of 1 row, such as the text of message 3 ('Thanks.') of a:1, which no answer follows"
    )
    read = LeftOut.from_json(left_out.to_json())
    assert (read.rows, read.firsts, read.lines()) == (left_out.rows, left_out.firsts, lines)
    other = LeftOut("because", left_out.rows, left_out.firsts)
    assert LeftOut.from_json(other.to_json()).lines() == other.lines() != lines


def test_the_form_that_was_used_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_accounting, "MOST_FORMS", 2)
    calls = []

    def write(conversation: Conversation) -> str:
        calls.append(conversation)
        return json.dumps(conversation.messages(), ensure_ascii=False)

    accounting = RowAccounting(write)
    rows = [Conversation(ROW.turns[1:2] * n) for n in (1, 2, 3)]
    written = [json.dumps(row.messages(), ensure_ascii=False) for row in rows]
    for number, is_new in ((0, True), (1, True), (0, False), (2, True), (0, False), (1, True)):
        calls.clear()
        prompt = Conversation(rows[number].turns, num_given=9)
        assert accounting.account(prompt, written[number]) == WHOLE
        assert bool(calls) == is_new
