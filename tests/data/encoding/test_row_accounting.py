"""Each text of a row is accounted for; the template is a function that leaves something out."""

import html
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infrastructure.data.encoding import row_accounting
from infrastructure.data.encoding.row_accounting import (
    CAUSE,
    WHOLE,
    Account,
    LeftOut,
    Missing,
    RowAccounting,
    reasoning_forms,
)
from infrastructure.data.readers.rows import Conversation, Turn

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
    text = Conversation((Turn("text", "All of it is learned."),))
    assert account(lambda row: "nothing of it", text) == WHOLE


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        (("messages", 3, "reasoning_content"), [(4, "hm")]),
        (("messages", 1, "reasoning_content"), [(2, "hm")]),
        (("messages", 5, "content"), [(6, "4")]),
        (("messages", 5, "reasoning"), [(6, "4")]),
        (("messages", 7, "reasoning"), []),
        (("messages", 7, "reasoning_content"), []),
        (("messages", 7, "content"), [(8, "ah")]),
    ],
)
def test_a_lost_text_that_stands_elsewhere_in_the_row_is_lost(
    path: Path, lost: list[tuple[int, str]]
) -> None:
    """Only reasoning that one message holds twice needs to be read once."""
    answers: list[tuple[str, dict[str, str]]] = [
        ("b", {"reasoning_content": "hm"}),
        ("d", {"reasoning_content": "hm"}),
        ("4", {"reasoning": "4"}),
        ("ah", {"reasoning": "ah", "reasoning_content": "ah"}),
    ]
    turns = [
        turn
        for number, (text, fields) in enumerate(answers)
        for turn in (Turn("user", f"{number}?"), Turn("assistant", text, json.dumps(fields)))
    ]
    found = account(without(path), Conversation(tuple(turns)))
    assert [(one.message, one.text) for one in found.missing] == lost


CALL: Path = ("messages", 2, "tool_calls", 0, "function")
FIRST: Path = ("tools", 0, "function")
PROPERTIES: Path = (*FIRST, "parameters", "properties")


def in_words(missing: Missing) -> str:
    """All that is known of a missing text, on a line."""
    kind = missing.kind.removeprefix("data.lost_")
    what = missing.what.replace("data.part_numbered_call(name=find, number=3, order=1)", "FIND")
    what = what.replace("data.part_numbered_call(name=stop, number=3, order=2)", "STOP")
    what = what.replace("data.part_of_tool(name=find)", "TOOL").replace("data.part_", "")
    what = re.sub(r"of_parameter\(name=(\w+), where=TOOL\)", r"TOOL.\1", what)
    what = re.sub(r"\b(argument|parameter|where)=", "", what)
    state = "learned" if missing.is_learnt else "read"
    state += " in part" if missing.is_cut else ""
    return f"{missing.message}: {kind} | {what} | {missing.text} | {state}"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            ("messages", 0, "content"),
            ["1: system_message | system_message() | Be brief. | read"],
        ),
        (
            ("messages", 1, "content"),
            ["2: user_message | message_text(number=2, role=user) | Where? | read"],
        ),
        (
            (*CALL, "name"),
            ["3: tool_call | call_name(FIND) | find | learned"],
        ),
        (
            (*CALL, "arguments", 0),
            ["3: argument | argument(city, FIND) | Rome | learned"],
        ),
        (
            (*CALL, "arguments", 1),
            ["3: argument | argument(days, FIND) | 3 | learned"],
        ),
        (
            (*CALL, "arguments", 2),
            [
                '3: argument | argument(near, FIND) | {"unit": "km", "most": 2.5} | learned',
                "3: argument | argument(near.most, FIND) | 2.5 | learned",
                "3: argument | argument(near.unit, FIND) | km | learned",
            ],
        ),
        (
            (*CALL, "arguments", 2, 0),
            ["3: argument | argument(near.unit, FIND) | km | learned"],
        ),
        (
            (*CALL, "arguments", 2, 1),
            ["3: argument | argument(near.most, FIND) | 2.5 | learned"],
        ),
        (
            (*CALL, "arguments", 3),
            ['3: argument | argument(tags, FIND) | ["a", 4, true] | learned'],
        ),
        (
            (*CALL, "arguments", 3, 0),
            ['3: argument | argument(tags, FIND) | ["a", 4, true] | learned in part'],
        ),
        (
            (*CALL, "arguments", 3, 1),
            ['3: argument | argument(tags, FIND) | ["a", 4, true] | learned in part'],
        ),
        (("messages", 2, "tool_calls", 0, "id"), []),
        (
            ("messages", 2, "tool_calls", 1, "name"),
            ["3: tool_call | call_name(STOP) | stop | learned"],
        ),
        (
            ("messages", 2, "tool_calls", 1, "arguments", 0),
            ["3: argument | argument(when, STOP) | now | learned"],
        ),
        (
            ("messages", 3, "content"),
            ["4: tool_result | message_text(number=4, role=tool) | In Rome. | read"],
        ),
        (("messages", 3, "tool_call_id"), []),
        (
            ("messages", 4, "content"),
            [
                "5: reasoning | message_reasoning(number=5) | so | read",
                "5: answer | message_text(number=5, role=assistant) | Rome. | read",
            ],
        ),
        (
            ("messages", 5, "content"),
            ["6: system_message | message_text(number=6, role=system) | Be kind. | read"],
        ),
        (
            ("messages", 6, "content", 0),
            ["7: user_message | message_text(number=7, role=user) | And then? | read in part"],
        ),
        (
            ("messages", 6, "content"),
            ["7: user_message | message_text(number=7, role=user) | And then? | read"],
        ),
        (
            ("messages", 7, "content"),
            ["8: answer | message_text(number=8, role=assistant) | Milan. | learned"],
        ),
        (
            ("messages", 7, "reasoning_content"),
            ["8: reasoning | message_reasoning(number=8) | hm | learned"],
        ),
        (("messages", 7, "name"), []),
        (
            ("messages", 8, "content"),
            ["9: after_last | message_text(number=9, role=user) | Thanks. | read"],
        ),
        ((*FIRST, "name"), ["0: tool | tool_name(name=find) | find | read"]),
        (
            (*FIRST, "description"),
            ["0: tool_description | description(TOOL) | Finds. | read"],
        ),
        (
            (*PROPERTIES, 0),
            [
                "0: tool_description | description(TOOL.city) | A city. | read",
                '0: tool_description | choices(TOOL.city) | ["x", "y", 5] | read',
            ],
        ),
        (
            (*PROPERTIES, 0, "description"),
            ["0: tool_description | description(TOOL.city) | A city. | read"],
        ),
        (
            (*PROPERTIES, 0, "enum"),
            ['0: tool_description | choices(TOOL.city) | ["x", "y", 5] | read'],
        ),
        (
            (*PROPERTIES, 0, "enum", 1),
            ['0: tool_description | choices(TOOL.city) | ["x", "y", 5] | read in part'],
        ),
        ((*PROPERTIES, 0, "enum", 2), []),
        (
            (*PROPERTIES, 1),
            [
                "0: tool_description | parameter(near, TOOL) | near | read",
                "0: tool_description | parameter(unit, TOOL.near) | unit | read",
            ],
        ),
        ((*PROPERTIES, 1, "properties", 0), []),
        ((*PROPERTIES, 1, "required"), []),
        (
            (*PROPERTIES, 2, "items", "description"),
            ["0: tool_description | description(of_schema(name=items, TOOL.tags)) | A tag. | read"],
        ),
        (
            (*PROPERTIES, 2, "items"),
            ["0: tool_description | description(of_schema(name=items, TOOL.tags)) | A tag. | read"],
        ),
        (
            (*FIRST, "return", "description"),
            ["0: tool_description | description(of_schema(name=return, TOOL)) | The place. | read"],
        ),
        ((*FIRST, "parameters", "required"), []),
        (("tools", 1, "name"), ["0: tool | tool_name(name=stop) | stop | read"]),
        (
            ("tools", 1, "description"),
            ["0: tool_description | description(of_tool(name=stop)) | Stops. | read"],
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
    texts = {one.text for one in found.missing if one.kind != "data.lost_argument"}
    assert texts - {one.text for one in alone.missing} <= {"near", "unit", "Where?"}


def test_a_prompt_alone_has_no_message_after_the_last_answer() -> None:
    """All of a row's messages are given: none of them follows an answer that is learned."""
    turns = (*ROW.turns[:2], Turn("assistant", "Rome."), Turn("user", "Thanks."))
    for num_given, kinds in (
        (0, AFTER),
        (3, AFTER),
        (4, ["data.lost_user_message"]),
        (5, ["data.lost_user_message"]),
    ):
        row = Conversation(turns, num_given=num_given)
        found = account(without(("messages", 3)), row)
        assert [one.kind for one in found.missing] == kinds
        answer = account(without(("messages", 2)), row).missing[0]
        assert (answer.kind, answer.is_learnt) == ("data.lost_answer", num_given < 3)


AFTER = ["data.lost_after_last"]


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
    names = [
        f"data.part_message_text(number={n + 1}, role={turn.role})" for n, turn in enumerate(turns)
    ]
    assert found.undetermined == (*names[64:], names[3])
    few = Conversation(turns[:64])
    assert account(upper(3, 63), few).undetermined == (names[3], names[63])

    def short(conversation: Conversation) -> str:
        return upper(3)(Conversation(conversation.turns[:20]))

    found = account(short, Conversation(turns[:24]))
    assert [one.message for one in found.missing] == [21, 22, 23, 24]
    assert found.undetermined == (names[3],)


def test_of_many_texts_those_of_one_writing_are_all_found_and_by_themselves_the_first() -> None:
    turns = tuple(Turn(("user", "assistant")[n % 2], f"text {n:02}") for n in range(80))

    def cut(conversation: Conversation) -> str:
        return "|".join(turn.text[:5] for turn in conversation.turns)

    found = account(cut, Conversation(turns))
    assert [one.message for one in found.missing] == [*range(1, 81)]
    assert not found.undetermined

    def write(conversation: Conversation) -> str:
        return upper(3)(replace(conversation, turns=conversation.turns[:70]))

    found = account(write, Conversation(turns))
    assert not found.missing
    assert len(found.undetermined) == 17


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


def as_html(text: str) -> str:
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


WAYS: list[Callable[[list[str]], str]] = [
    "".join,
    repr,
    json.dumps,
    as_json,
    lambda texts: json.dumps({"a": texts}, indent=1),
    lambda texts: as_json(as_json(texts)),
    lambda texts: "<p>".join(map(as_html, texts)),
    lambda texts: as_html(as_json(texts)),
    lambda texts: "".join(map(repr, texts)),
    lambda texts: f"{dict.fromkeys(texts, 'it')}",
    lambda texts: "|".join(text.strip() for text in texts),
]


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_found_however_they_are_written(way: Callable[[list[str]], str]) -> None:
    draw = random.Random(5)
    for _ in range(60):
        drawn = ["".join(draw.choices("'\"\\ab é\n<&{", k=draw.randrange(1, 9))) for _ in "1234"]
        texts = list(dict.fromkeys(text.strip() or "c" for text in drawn))
        row = Conversation(
            tuple(Turn(("user", "assistant")[n % 2], t) for n, t in enumerate(texts))
        )

        def write(conversation: Conversation) -> str:
            return way([turn.text for turn in conversation.turns])

        accounting = RowAccounting(write)
        assert accounting.account(row, write(row)) == WHOLE, texts
        lost = replace(row, turns=row.turns[:-1])
        found = accounting.account(row, write(lost)) if len(texts) > 1 else WHOLE
        assert found != WHOLE or len(texts) == 1


def test_numbers_are_found_however_they_are_written() -> None:
    arguments = {"n": 7, "f": -0.25, "big": 10**20, "small": 1e-7, "e": "", "list": [1, 2.5]}
    row = calling(arguments)
    for way in (json.dumps, repr):

        def write(conversation: Conversation) -> str:
            return f"{head(conversation)} {way(arguments_of(conversation))}"  # noqa: B023

        assert account(write, row) == WHOLE


def calling(arguments: dict[str, Any], *others: dict[str, Any]) -> Conversation:
    called = [{"function": {"name": "do", "arguments": one}} for one in (arguments, *others)]
    return Conversation(
        (Turn("user", " a\n"), Turn("assistant", "", json.dumps({"tool_calls": called})))
    )


def head(conversation: Conversation) -> str:
    """The question, and the name of what is called."""
    called = conversation.turns[1].message()["tool_calls"][0]["function"]
    return f"{conversation.turns[0].text} {called['name']}"


def arguments_of(conversation: Conversation) -> dict[str, Any]:
    held = conversation.turns[1].message()["tool_calls"][0]["function"]
    assert isinstance(held, dict)
    arguments: dict[str, Any] = held["arguments"]
    return arguments


def lost_of(write: Callable[[Conversation], str], row: Conversation, source: str = "") -> list[str]:
    """What is lost of a row, each in a few words; nothing is undetermined."""
    found = account(write, row, source)
    assert not found.undetermined
    return [
        f"{one.what.split(', where=data.part_tool_call')[0]}{'…' * one.is_cut}"
        for one in found.missing
    ]


def test_what_stands_for_a_value_is_like_it() -> None:
    """A number stays one, of its kind; what has no text of its own stays as it is."""
    row = calling({"n": 7, "f": -0.25, "yes": True, "none": None, "s": "x"})

    def kinds(conversation: Conversation) -> str:
        held = arguments_of(conversation)
        return (
            f"{head(conversation)} {[(key, type(value).__name__) for key, value in held.items()]}"
        )

    lost = [
        "data.part_argument(argument=f…",
        "data.part_argument(argument=n…",
        "data.part_argument(argument=s…",
    ]
    assert lost_of(kinds, row) == lost

    def plain(conversation: Conversation) -> str:
        held = arguments_of(conversation)
        keys = [key for key in held if key not in ("yes", "none")]
        return f"{head(conversation)} {keys} {held['yes']}"

    assert lost_of(plain, row, "{{ yes none }}") == lost


def test_keys_that_a_template_names_stay() -> None:
    row = calling({"city": "Rome", "days": 3, "n": 5})

    def write(conversation: Conversation) -> str:
        held = arguments_of(conversation)
        return f"{head(conversation)} {held['city']} {held['days']} n"

    assert lost_of(write, row, "{{ c.city }}{{ c['days'] }}") == ["data.part_argument(argument=n"]


def test_keys_may_be_sorted_whatever_their_case() -> None:
    row = calling({"Zeta": 1, "alpha": "b", "Mid": 2})

    def write(conversation: Conversation) -> str:
        return f"{head(conversation)} {sorted(arguments_of(conversation), key=str.lower)}"

    lost = [
        "data.part_argument(argument=alpha…",
        "data.part_argument(argument=Mid…",
        "data.part_argument(argument=Zeta…",
    ]
    assert lost_of(write, row) == lost
    inner = {"type": "object", "properties": {"inner": {"type": "string"}}}
    schema = {"type": "object", "properties": {"Zeta": inner, "alpha": {"type": "string"}}}
    tools = json.dumps({"tools": [{"name": "do", "parameters": schema}]})

    def top(conversation: Conversation) -> str:
        (tool,) = json.loads(conversation.inputs)["tools"]
        names = f"{conversation.turns[0].text} {tool['name']}"
        return f"{names} {sorted(tool['parameters']['properties'], key=str.lower)}"

    found = account(top, Conversation((Turn("assistant", "b"),), inputs=tools))
    assert [one.text for one in found.missing] == ["inner"]


def test_the_call_is_numbered_where_there_are_several() -> None:
    def write(conversation: Conversation) -> str:
        return conversation.turns[0].text

    first, second = ({"é": {"ü": 1}}, {"b": 2})
    whats = [one.what for one in account(write, calling(first)).missing]
    assert whats[0] == "data.part_call_name(where=data.part_tool_call(name=do, number=2))"
    found = account(write, calling(first, second)).missing
    assert [one.what for one in found if "part_call_name" in one.what] == [
        f"data.part_call_name(where=data.part_numbered_call(name=do, number=2, order={order}))"
        for order in (1, 2)
    ]
    assert found[1].text == '{"ü": 1}'
    tools = json.dumps({"tools": [{"name": "do", "enum": ["é", 1]}]})
    found = account(
        lambda row: row.turns[0].text, Conversation((Turn("assistant", "b"),), "", "", 0, tools)
    )
    assert [one.text for one in found.missing] == ["do", '["é", 1]']
    assert not any(one.is_learnt for one in found.missing)


def test_of_two_tools_of_one_name_the_lost_one_is_missed() -> None:
    def write(conversation: Conversation) -> str:
        return f"{conversation.turns[0].text} {json.loads(conversation.inputs)['tools'][0]['name']}"

    tools = json.dumps({"tools": [{"name": "do"}] * 2})
    found = account(write, Conversation((Turn("assistant", "b"),), inputs=tools))
    assert [one.what for one in found.missing] == ["data.part_tool_name(name=do)"]
    options = json.dumps({"chat_template_kwargs": {"thinking": True}})
    one = Conversation((Turn("assistant", "b"),), inputs=options)
    assert account(lambda row: row.turns[0].text, one) == WHOLE


@pytest.mark.parametrize("length", range(12))
def test_a_cut_text_is_missed_as_cut(length: int) -> None:
    """Whether its beginning is left or its end, and whether it stands there more than once."""
    texts = ("abcdefgh", "xyz é")
    row = Conversation((Turn("user", texts[0]), Turn("assistant", f" {texts[1]}\n")))
    start, end = slice(length), slice(-length, None) if length else slice(0)
    lost = [(text, length > 0) for text in texts if len(text) > length]
    for repeated in (1, 2):
        for kept in (start, end):

            def write(conversation: Conversation) -> str:
                cut = (turn.text.strip()[kept] * repeated for turn in conversation.turns)  # noqa: B023
                return "|".join(cut)

            found = account(write, row)
            if repeated == 1 or not lost or not length:
                assert [(one.text, one.is_cut) for one in found.missing] == lost
                assert not found.undetermined

            def both(conversation: Conversation) -> str:
                texts = (turn.text.strip() for turn in conversation.turns)
                return "|".join(f"{text}/{text[kept]}" for text in texts)  # noqa: B023

            assert account(both, row) == WHOLE


SECRET = "{% if 'secret' in m %}{{ 'sec' }}{% if 'né\\n' in m or \"o\\u1f00\" in m %}{{ '' }}"


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("my secret plan", True),
        ("secret secret is", True),
        ("a secret", True),
        ("a né\nb", True),
        ("a oἀ b", True),
        ("my sec", False),
        ("a né b", False),
        ("sec, and no more", False),
    ],
)
def test_a_template_that_looks_for_words_is_seen_through(text: str, is_lost: bool) -> None:
    def write(conversation: Conversation) -> str:
        texts = (turn.text for turn in conversation.turns)
        return "|".join(
            one for one in texts if not any(word in one for word in ("secret", "né\n", "oἀ"))
        )

    for turns in ((text, "b"), ("b", text), (text, text), ("sec", text)):
        row = Conversation(tuple(map(Turn, ("user", "assistant"), turns)))
        found = account(write, row, SECRET)
        assert [one.text for one in found.missing] == [text] * turns.count(text) * is_lost
        assert not found.undetermined


def test_a_text_is_cut_beside_one_that_a_template_looks_into() -> None:
    def write(conversation: Conversation) -> str:
        return "|".join(t.text[:5] for t in conversation.turns if "secret" not in t.text)

    turns = Turn("user", "my secret"), Turn("assistant", "abcdefgh"), Turn("user", "b")
    found = account(write, Conversation(turns), SECRET)
    assert [(one.text, one.is_cut) for one in found.missing] == [
        ("my secret", False),
        ("abcdefgh", True),
    ]
    assert not found.undetermined


def test_a_text_is_cut_beside_one_that_is_undetermined() -> None:
    def write(conversation: Conversation) -> str:
        return f"{conversation.turns[0].text.upper()}|{conversation.turns[1].text[:5]}"

    found = account(write, Conversation((Turn("user", "what"), Turn("assistant", "abcdefgh"))))
    assert [(one.text, one.is_cut) for one in found.missing] == [("abcdefgh", True)]
    assert found.undetermined == ("data.part_message_text(number=1, role=user)",)


@pytest.mark.parametrize("number", ["790000060000", "799999999999"])
def test_a_number_that_is_no_mark_is_a_number(number: str) -> None:
    def write(conversation: Conversation) -> str:
        return f"{conversation.turns[0].text} {number}"

    assert account(write, Conversation((Turn("assistant", "b"),))) == WHOLE


def test_white_space_in_quotes_of_python() -> None:
    row = Conversation((Turn("user", ' a"\nb '), Turn("assistant", "b")))
    assert account(lambda row: repr([turn.text for turn in row.turns]), row) == WHOLE


@pytest.mark.parametrize("way", [repr, json.dumps])
def test_many_texts_in_quotes(way: Callable[[list[str]], str]) -> None:
    turns = tuple(Turn(("user", "assistant")[n % 2], f"it's {n}") for n in range(66))
    row = Conversation(turns)
    assert account(lambda row: way([turn.text for turn in row.turns]), row) == WHOLE


def test_rows_that_differ_in_texts_numbers_and_ids_share_a_marked_writing() -> None:
    calls = []

    def write(conversation: Conversation) -> str:
        calls.append(conversation)
        return as_json(conversation.messages())

    accounting = RowAccounting(write)
    for number, text in enumerate(("b", "some more", "äöü")):
        called = [{"id": f"id_{number}", "name": f"do {text}", "arguments": {text: number}}]
        turns = (
            Turn("user", text),
            Turn("assistant", text, as_json({"tool_calls": called})),
            Turn("tool", text, as_json({"tool_call_id": f"id_{number}"})),
            Turn("assistant", f"{text}!"),
        )
        row = Conversation(turns)
        calls.clear()
        assert accounting.account(row, as_json(row.messages())) == WHOLE
        assert bool(calls) == (number == 0)


def test_a_text_that_is_just_a_word_of_the_template_is_a_text() -> None:
    row = Conversation((Turn("user", "secret"), Turn("assistant", "b")))
    assert account(lambda row: "b", row, SECRET).missing[0].text == "secret"

    def write(conversation: Conversation) -> str:
        return "|".join(turn.text for turn in conversation.turns if turn.text != "secret")

    assert account(write, row, SECRET).undetermined == (
        "data.part_message_text(number=1, role=user)",
    )


def test_long_texts_have_a_mark_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty string of the template's own cuts nothing into characters."""
    monkeypatch.setattr(row_accounting, "MOST_MARKS", 5)
    row = Conversation((Turn("user", "secret plans"), Turn("assistant", "b")))

    def write(conversation: Conversation) -> str:
        return "" if "secret" in conversation.turns[0].text else "none"

    assert [one.text for one in account(write, row, SECRET).missing] == ["secret plans", "b"]


def test_tags_of_reasoning_stay_in_every_text() -> None:
    def write(conversation: Conversation) -> str:
        return "|".join(turn.text.split("</think>")[-1] for turn in conversation.turns)

    row = Conversation((Turn("user", "x</think>y"), Turn("assistant", "b")))
    (missing,) = account(write, row).missing
    assert (missing.text, missing.is_cut) == ("x</think>y", True)
    row = Conversation((Turn("user", "Q"), Turn("assistant", "so</think>Rome.")))
    (missing,) = account(write, row).missing
    assert (missing.kind, missing.text, missing.is_cut) == ("data.lost_reasoning", "so", False)


def test_a_message_of_another_role_is_named_by_it() -> None:
    row = Conversation((Turn("critic", "Hm."), Turn("assistant", "b")))
    (missing,) = account(lambda row: row.turns[1].text, row).missing
    assert missing.kind == "data.lost_message_of_role(role=critic)"


def test_keys_and_numbers_that_a_template_looks_into_stay() -> None:
    def write(conversation: Conversation) -> str:
        held = arguments_of(conversation)
        return f"{head(conversation)} {held.get('city')} {2 * held.get('days', 0)}"

    assert account(write, calling({"city": "Rome", "days": 3})) == WHOLE


@pytest.mark.parametrize("most", range(9))
def test_what_has_no_mark_left_is_not_missed(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_accounting, "MOST_MARKS", most)
    row = calling({"k": [1, "x", 2.5, 3]})  # marks: a, do, k, and one for each of the list

    def whole(conversation: Conversation) -> str:
        return f"{head(conversation)} {json.dumps(arguments_of(conversation))}"

    def write(conversation: Conversation) -> str:
        ((key, held),) = arguments_of(conversation).items()
        return f"{head(conversation)} {key} {held[:-1]} {held[-1] if most < 7 else ''}".rstrip()

    assert account(whole, row) == WHOLE
    found = account(lambda row: "", row)
    assert [one.message for one in found.missing] == [1, 2, 2][:most]
    assert not found.undetermined
    assert bool(account(write, row).missing) == (most >= 7)


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
        ("c", {"thinking": "sö"}, "m.thinking", []),
        # nothing to move
        ("c", {}, "thinking </think>", []),
        ("c", {"reasoning": None}, "thinking </think>", []),
        ("c", {"reasoning": "so", "content": [{"type": "text", "text": "c"}]}, "thinking", []),
    ],
)
def test_reasoning_is_moved_where_a_template_reads_it(
    text: str, fields: dict[str, Any], source: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    held = as_json(fields) if fields else ""
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


SYSTEM, ANSWER = "data.lost_system_message", "data.lost_answer"


def test_what_rows_lose_is_counted_by_kind_with_the_first() -> None:
    system = Missing(SYSTEM, "the system message", "Be\nbrief." + "x" * 99, False)
    part = Missing(ANSWER, "the text of message 2", "Rome.", True, is_cut=True)
    after = Missing(AFTER[0], "the text of message 3", "Thanks.", False)
    left_out = LeftOut()
    later = Missing(ANSWER, "the text of message 4", "Paris.", True)
    left_out.add("a:1", [part, later, after])
    left_out.add("a:2", [system])
    left_out.add("a:3", [system, Missing(ANSWER, "other", "x", True)])
    left_out.add("a:4", [system])
    left_out.add("a:5", [])
    assert left_out.rows == {ANSWER: 2, AFTER[0]: 1, SYSTEM: 3}
    lines = left_out.lines()
    lost = "data.never_read_by_model(kind="
    assert lines[0].startswith(
        f"{lost}{SYSTEM}(), count=3, example=data.lost_whole(what=the system mess"
    )
    assert lines[0].endswith(f"place=a:2, cause={CAUSE}())")
    assert "x" * 70 not in lines[0]
    example = "data.lost_part(what=the text of message 2, text=Rome.)"
    assert lines[1].startswith(f"{lost}{ANSWER}(), count=2, example={example}, place=a:1")
    example = "data.lost_whole(what=the text of message 3, text=Thanks.)"
    assert lines[2].startswith(f"{lost}{AFTER[0]}(), count=1, example={example}, place=a:1")
    read = LeftOut.from_json(left_out.to_json())
    assert read.rows == {f"{kind}()": count for kind, count in left_out.rows.items()}
    assert read.firsts == {f"{kind}()": first for kind, first in left_out.firsts.items()}
    assert read.lines() == lines
    assert lines[2].endswith("place=a:1, cause=data.no_answer_follows())")
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
