"""Unusable rows are reported with a remedy, and conversations know which answers are trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.data.readers import rows
from infrastructure.data.readers.rows import (
    BadRow,
    Conversation,
    Label,
    Turn,
    Unreadable,
    excerpt,
    kind_of,
)
from infrastructure.data.readers.sources import discover

GOOD = b'{"a": "x"}'


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("a.jsonl", b"{'a': 1}", "data.write_with_json_dumps()"),
        ("a.jsonl", b"[1]", ""),
        ("a.jsonl", b'{"a": "\xff\xfe\xfd\xfc"}', "data.set_encoding_of_common()"),
        ("a.jsonl", b'{"a": "Gr\xfc\xdfe aus Wien"}', "data.windows_text(encoding=cp1252)"),
        ("a.json", b'{"a": "\\ud83d"}', "data.write_text_whole()"),
        ("a.csv", b"1,2,3", "data.quote_separators()"),
        ("a.csv", b'1,"2" x', "data.quote_quotes()"),
        ("a.csv", b'1,"2\n3,4"', "data.fix_spanning_quote()"),
    ],
)
def test_a_row_that_cannot_be_used_has_its_remedy(
    tmp_path: Path, name: str, content: bytes, remedy: str
) -> None:
    whole = {
        "a.jsonl": GOOD + b"\n" + content + b"\n",
        "a.json": b"[" + GOOD + b",\n" + content + b"]",
        "a.csv": b"q,a\n" + content + b"\n",
    }
    (tmp_path / name).write_bytes(whole[name])
    [bad, *_] = [row for row in discover(str(tmp_path / name))[0].rows() if isinstance(row, BadRow)]
    assert (bad.line, bad.remedy) == (2, remedy)


def test_the_remedy_of_the_row_goes_before_that_of_its_reason() -> None:
    row = BadRow("a", 3, "broken CSV", "why", advice="mine")
    assert (row.remedy, row.place) == ("mine", "a:3")
    assert str(row) == "a:3: broken CSV (why)"
    assert str(BadRow("a", 3, "empty")) == "a:3: empty"
    assert BadRow("a", 3, "empty").remedy == ""
    assert BadRow("a", 3, "empty", advice="mine").remedy == "mine"


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (rows.BROKEN_JSON, "write_with_json_dumps"),
        (rows.INVALID_UTF8, "set_encoding_of_common"),
        (rows.HALF_CHARACTER, "write_text_whole"),
        (rows.OTHER_ENCODING, "set_encoding_of_file"),
        (rows.WRONG_COLUMNS, "quote_separators"),
        (rows.BROKEN_CSV, "quote_quotes"),
        (rows.MISSING_COLUMN, "give_one_file"),
        (rows.NOT_IN_TOKENS, "take_other_tokenizer"),
        *((name, "") for name in (rows.WRONG_TYPE, rows.LINE_TOO_LONG, rows.EMPTY, rows.PICTURE)),
        *((name, "") for name in (rows.CHAT_TEMPLATE, rows.OVER_LONG, rows.LEFT_OUT)),
        *((name, "") for name in (rows.NOT_SUPERVISED, rows.NO_PREFERENCE)),
    ],
)
def test_a_reason_has_its_remedy(reason: str, remedy: str) -> None:
    assert BadRow("a", 1, reason).remedy == (f"data.{remedy}()" if remedy else "")
    assert {rows.LEFT_OUT, rows.NOT_IN_TOKENS} == rows.UNLEARNABLE


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a" * 120, "a" * 120),
        ("a" * 121, "a" * 119 + "…"),
        (" two\n\t lines ", "two lines"),
        (b"\xff\xc3\xa9", "\ufffdé"),
        (("x " * 60) + "y" * 30, ("x " * 60)[:119] + "…"),
        ([1, "a"], "[1, 'a']"),
        ("", ""),
    ],
)
def test_an_excerpt_is_one_short_line(value: object, shown: str) -> None:
    assert excerpt(value) == shown
    assert excerpt("abcdef", 3) == "ab…"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "nothing"),
        (True, "a truth value"),
        (1, "a number"),
        (1.5, "a number"),
        ("a", "text"),
        ([], "a list"),
        ({}, "an object"),
        (b"", "bytes"),
        (Unreadable("a date"), "a date"),
        (Path("a"), "a PosixPath"),
    ],
)
def test_a_value_has_the_name_of_its_kind(value: object, name: str) -> None:
    assert kind_of(value) == name


def test_a_label_is_its_name_and_knows_its_number() -> None:
    assert (Label("yes", 1), Label("yes", 1).number, Label("no").number) == ("yes", 1, -1)


def turns(*roles: str, untaught: tuple[int, ...] = ()) -> tuple[Turn, ...]:
    return tuple(
        Turn(role, f"{role} {n}", is_learnt=n not in untaught) for n, role in enumerate(roles)
    )


CHAT = ("user", "assistant", "user", "assistant", "user")


@pytest.mark.parametrize(
    ("untaught", "num_given", "last", "learnt"),
    [
        ((), 0, 3, [1, 3]),
        ((3,), 0, 1, [1]),
        ((1,), 0, 3, [3]),
        ((1, 3), 0, 3, []),  # none is trained: the last one counts
        ((), 1, 3, [1, 3]),
        ((), 2, 3, [3]),
        ((), 3, 3, [3]),
        ((), 4, 3, []),
        ((3,), 2, 3, []),
    ],
)
def test_the_last_trained_answer_ends_what_is_learnt(
    untaught: tuple[int, ...], num_given: int, last: int, learnt: list[int]
) -> None:
    chat = Conversation(turns(*CHAT, untaught=untaught), num_given=num_given)
    assert chat.last_answer == last
    assert (chat.answer, chat.prompt) == (chat.turns[last], chat.turns[:last])
    assert chat.taught == chat.turns[: last + 1]
    assert [n for n in (1, 3) if chat.is_learnt(n)] == learnt
    alone = chat.with_last_answer
    assert alone.answer == chat.answer
    assert [n for n in (1, 3) if alone.is_learnt(n)] == [last] * chat.answer.is_learnt
    assert all(turn.is_learnt for turn in alone.prompt)
    assert (alone.num_given, alone.turns[last:]) == (last, chat.turns[last:])


def test_a_conversation_without_an_answer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"conversation_without_answer\(place=a:3\)"):
        Conversation(turns("user"), source="a", line=3).last_answer  # noqa: B018


IMAGE = '{"content": [{"type": "text", "text": "?"}, {"type": "image"}, {"type": "image"}]}'


def test_a_message_has_its_further_content() -> None:
    plain, call = Turn("user", "a"), Turn("assistant", "", '{"tool_calls": [1], "thinking": "b"}')
    seen = Turn("user", "?", IMAGE)
    assert plain.message() == {"role": "user", "content": "a"}
    assert call.message() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [1],
        "thinking": "b",
    }
    assert [turn.calls_tools for turn in (plain, call, seen)] == [False, True, False]
    assert not Turn("assistant", "", '{"tool_calls": []}').calls_tools
    assert [turn.num_pictures for turn in (plain, call, seen)] == [0, 0, 2]
    assert Conversation((plain, seen, seen)).num_pictures == 4
    assert len(seen.message()["content"]) == 3
    assert Turn("user", "a", '{"content": "b"}').parts == []


def changed(**facts: Any) -> Conversation:
    whole: dict[str, Any] = {"turns": turns("user", "assistant"), "task": "t", "inputs": '{"a": 1}'}
    return Conversation(**{**whole, "source": "s", "line": 3, **facts})


@pytest.mark.parametrize(
    ("facts", "trains_alike"),
    [
        ({}, True),
        ({"source": "x", "line": 4, "task": "u"}, True),
        ({"turns": turns("user", "assistant", "user")}, True),  # nothing after an answer is learnt
        ({"turns": turns("user", "assistant", "assistant")}, False),
        ({"turns": turns("system", "assistant")}, False),
        (
            {"turns": (Turn("user", "user 0", '{"name": "x"}'), Turn("assistant", "assistant 1"))},
            False,
        ),
        ({"turns": turns("user", "assistant", untaught=(1,))}, False),
        ({"turns": turns("user", "assistant", untaught=(0,))}, True),  # a question never is
        ({"num_given": 2}, False),
        ({"num_given": 1}, True),
        ({"inputs": ""}, False),
        ({"inputs": '{"a": 2}'}, False),
    ],
)
def test_conversations_that_train_alike_have_equal_pairs(
    facts: dict[str, Any], trains_alike: bool
) -> None:
    assert (changed(**facts).pairs() == changed().pairs()) is trains_alike
    again = Conversation.from_json(changed(**facts).to_json())
    assert again == changed(**facts)
    assert "\n" not in changed(**facts).to_json()


def test_pictures_are_kept_elsewhere_than_the_text() -> None:
    shown = changed(pictures=("a.png", b"bytes"))
    written = json.loads(shown.to_json())
    assert written.pop("pictures") == []
    for text in (shown.to_json(), json.dumps(written)):  # as before there were pictures
        assert Conversation.from_json(text) == changed()
