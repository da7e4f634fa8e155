"""Rows of every shape that people have become what TRL's trainers read, or say why not."""

import re
from typing import Any

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.training.methods.method_rows import (
    LABEL_COLUMNS,
    RANKED_PAIRS,
    MethodRow,
    MethodShape,
    recognise,
)
from infrastructure.training.methods.method_table import RowKind

USER = {"role": "user", "content": "Say a."}
GOOD = {"role": "assistant", "content": "a"}
BAD = {"role": "assistant", "content": "b"}
PAIR = {"prompt": "Say a.", "chosen": "a", "rejected": "b"}
CHAT_PAIR = {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}


def shape_of(method: str, *values: dict[str, Any], **settings: Any) -> MethodShape:
    rows = [Row(value, "rows.jsonl", n) for n, value in enumerate(values, 1)]
    return recognise(rows, DataConfig(path="rows.jsonl", **settings), method)


def plainly(row: MethodRow | BadRow) -> Any:
    """A row in messages, as TRL reads it with a chat template; one that cannot be used as it is."""
    if isinstance(row, BadRow):
        return row
    named = {"prompt": row.prompt, **row.answers}
    texts = {name: turns[0].text for name, turns in named.items()} if row.is_plain else {}
    return row.values | {n: [t.message() for t in turns] for n, turns in named.items()} | texts


def one(method: str, values: dict[str, Any], **settings: Any) -> Any:
    return plainly(shape_of(method, values, **settings).row(Row(values, "rows.jsonl", 1)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (PAIR, CHAT_PAIR),
        ({"question": "Say a.", "chosen": "a", "rejected": "b"}, CHAT_PAIR),
        ({"instruction": "Say a.", "response_j": "a", "response_k": "b"}, CHAT_PAIR),
        (CHAT_PAIR, CHAT_PAIR),
        ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, CHAT_PAIR),
        # UltraFeedback: the prompt as text, and inside both conversations
        ({"prompt": "Say a.", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, CHAT_PAIR),
        # LLaMA-Factory: ShareGPT with an answer each
        (
            {
                "conversations": [{"from": "human", "value": "Say a."}],
                "chosen": {"from": "gpt", "value": "a"},
                "rejected": {"from": "gpt", "value": "b"},
            },
            CHAT_PAIR,
        ),
        ({"prompt": "Say a.", "chosen": [GOOD], "rejected": [BAD]}, CHAT_PAIR),
        ({"prompt": "Say a.", "chosen": [GOOD], "rejected": "b"}, CHAT_PAIR),
        # Anthropic's: texts that begin alike
        (
            {
                "chosen": "\n\nHuman: Hi\n\nAssistant: Hello.",
                "rejected": "\n\nHuman: Hi\n\nAssistant: No.",
            },
            {
                "prompt": "\n\nHuman: Hi\n\nAssistant:",
                "chosen": " Hello.",
                "rejected": " No.",
            },
        ),
    ],
)
def test_pairs(values: dict[str, Any], expected: dict[str, Any]) -> None:
    shape = shape_of("dpo", values)
    assert shape.kind is RowKind.PAIRS
    assert plainly(shape.row(Row(values, "rows.jsonl", 1))) == expected


EMPTY = "data.value_empty(where=data.place_column(column={}))"


@pytest.mark.parametrize(
    ("values", "reason", "detail"),
    [
        (
            PAIR | {"rejected": "a"},
            "no preference",
            "methods.answers_equal(chosen=chosen, rejected=rejected)",
        ),
        (PAIR | {"chosen": None}, "empty", EMPTY.format("chosen")),
        (
            {"prompt": "Say a.", "rejected": "b"},
            "missing column",
            "data.column_missing(column=chosen)",
        ),
        (PAIR | {"chosen": " "}, "empty", EMPTY.format("chosen")),
        (
            PAIR | {"chosen": 3.5},
            "wrong type",
            "data.value_not_text(where=data.place_column(column=chosen), kind=a number",
        ),
        (PAIR | {"prompt": ""}, "empty", EMPTY.format("prompt")),
        (
            PAIR | {"chosen": [USER, GOOD]},
            "no supervised token",
            "methods.difference_not_an_answer()",
        ),
        (
            PAIR | {"chosen": [{"type": "image"}]},
            "wrong type",
            "data.value_not_text(where=data.place_column(column=chosen), kind=a list",
        ),
        (
            CHAT_PAIR | {"rejected": [USER]},
            "no supervised token",
            "methods.difference_not_an_answer()",
        ),
        (CHAT_PAIR | {"prompt": [GOOD]}, "empty", "methods.prompt_column_empty(column=prompt)"),
        (
            CHAT_PAIR | {"chosen": [{"role": "wizard", "content": "a"}]},
            "wrong type",
            "data.message_role_unknown",
        ),
    ],
)
def test_a_pair_that_does_not_fit_is_set_aside(
    values: dict[str, Any], reason: str, detail: str
) -> None:
    bad = shape_of("dpo", PAIR).row(Row(values, "rows.jsonl", 7))
    assert isinstance(bad, BadRow)
    assert (bad.place, bad.reason) == ("rows.jsonl:7", reason)
    assert detail in bad.detail


@pytest.mark.parametrize("rejected", ["Other text", "a b "])
def test_texts_without_a_shared_prompt_are_set_aside(rejected: str) -> None:
    values = {"chosen": "a b c", "rejected": rejected}
    assert isinstance(one("dpo", values), BadRow)


def test_labels_are_truth_values_however_they_are_spelt() -> None:
    for label, expected in ((True, True), (0, False), ("True", True), ("false", False)):
        values = {"prompt": "Say a.", "completion": "a", "label": label}
        row = one("kto", values)
        assert row == {"prompt": [USER], "completion": [GOOD], "label": expected}


def test_pairs_serve_kto_and_conversations_do() -> None:
    assert one("kto", PAIR) == CHAT_PAIR
    row = one("kto", {"messages": [USER, GOOD], "label": True})
    assert row == {"prompt": [USER], "completion": [GOOD], "label": True}


def test_prompts_bring_their_answers_and_what_else_is_plain() -> None:
    values = {"question": "1+1?", "answer": "2", "level": 3, "tags": ["x"], "images": ["y"]}
    row = shape_of("grpo", values).row(Row(values, "rows.jsonl", 1))
    assert isinstance(row, MethodRow)
    assert (row.prompt[0].text, row.answers["answer"][0].text) == ("1+1?", "2")
    assert row.values == {"question": "1+1?", "answer": "2", "level": 3, "tags": ["x"]}
    row = one("rloo", {"messages": [USER, GOOD]})
    assert (row["prompt"], row["answer"]) == ([USER], [GOOD])
    assert one("rloo", {"messages": [USER]})["prompt"] == [USER]
    row = one("distillation", {"prompt": "Say a.", "note": "x"})
    assert row == {"prompt": [USER], "note": "x"}
    row = one(
        "grpo", {"task": "Say a.", "solution": "a"}, prompt_column="task", answer_column="solution"
    )
    assert (row["prompt"], row["answer"]) == ([USER], [GOOD])


@pytest.mark.parametrize(
    ("method", "values", "sentence"),
    [
        ("dpo", {"prompt": "a", "completion": "b"}, "methods.pairs_missing(method=dpo,"),
        (
            "dpo",
            {"prompt": "a", "response_a": "b", "response_b": "c"},
            "methods.better_answer_unknown(first=response_a, second=response_b)",
        ),
        (
            "orpo",
            {"prompt": "a", "completion": "b", "label": True},
            "methods.labels_instead_of_pairs(column=label, method=orpo)",
        ),
        ("kto", {"prompt": "a", "completion": "b"}, "methods.label_column_missing("),
        (
            "kto",
            {"text": "a", "label": True},
            "methods.answer_columns_unknown(method=training.method=kto,",
        ),
        (
            "grpo",
            PAIR,
            "methods.pairs_instead_of_prompts(better=chosen, worse=rejected, method=grpo)",
        ),
        ("grpo", {"text": "a"}, "methods.prompt_column_missing(method=grpo,"),
    ],
)
def test_other_rows_are_refused_with_the_way_on(
    method: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        shape_of(method, values)


def converted(method: str, shaped_by: dict[str, Any], values: dict[str, Any]) -> Any:
    """What a row is of data that begins with another one; of one that cannot be used the reason."""
    row = plainly(shape_of(method, shaped_by).row(Row(values, "rows.jsonl", 2)))
    return row.reason if isinstance(row, BadRow) else row


JUDGED = {"prompt": "Say a.", "completion": "a", "label": True}


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ((True, 1, 1.0, "True", " yes ", "Good", "desirable"), True),
        ((False, 0, 0.0, "FALSE", "no", "bad", "undesirable"), False),
        ((None, 2, "maybe", "", "1.5"), None),
    ],
)
def test_each_word_for_a_judgement_is_one(words: tuple[Any, ...], label: bool | None) -> None:
    for word in words:
        found = converted("kto", JUDGED, JUDGED | {"label": word})
        expected = {"prompt": [USER], "completion": [GOOD], "label": label}
        assert found == ("wrong type" if label is None else expected)


@pytest.mark.parametrize("column", LABEL_COLUMNS)
def test_each_name_of_a_judgement_is_known(column: str) -> None:
    values = {"prompt": "Say a.", "completion": "a", column: "no"}
    shape = shape_of("kto", values)
    assert column in shape.used
    assert plainly(shape.row(Row(values, "", 1)))["label"] is False


def test_a_column_of_judgements_holds_them_in_half_of_its_rows() -> None:
    other = JUDGED | {"label": "neither"}
    assert shape_of("kto", JUDGED, other).kind is RowKind.JUDGED
    with pytest.raises(
        ValueError, match=r"methods\.label_values_unknown\(.*values='neither', True"
    ):
        shape_of("kto", other, JUDGED, other)
    many = [JUDGED | {"label": word} for word in ("b", "a", "a", "c", "d", "b", "a", "c", "c")]
    with pytest.raises(
        ValueError, match=r"methods\.label_values_unknown\(.*values='a', 'c', 'b'\)"
    ):
        shape_of("kto", *many)


@pytest.mark.parametrize("pair", RANKED_PAIRS)
@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_each_ranked_pair_has_the_better_answer_first(method: str, pair: tuple[str, str]) -> None:
    assert one(method, {"prompt": "Say a.", pair[0]: "a", pair[1]: "b"}) == CHAT_PAIR
    assert one(method, {pair[1]: "b", "prompt": "Say a.", pair[0]: "a"}) == CHAT_PAIR


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [
        ("Q: a b", "Q: a c", ("Q: a", " b", " c")),
        ("Q:\na", "Q:\nb", ("Q:\n", "a", "b")),
        ("Q: apple", "Q: apply", ("Q:", " apple", " apply")),
        ("Q  a", "Q  b", ("Q", "  a", "  b")),
        ("Q a", "Q a b", ("Q", " a", " a b")),
        ("Q a ", "Q a b", "empty"),
        ("a", "b", "no supervised token"),
        (" a", " b", "no supervised token"),
    ],
)
def test_texts_part_at_the_end_of_a_word(better: str, worse: str, expected: Any) -> None:
    for first, second, names in (
        (better, worse, ("chosen", "rejected")),
        (worse, better, ("rejected", "chosen")),
    ):
        values = {"chosen": first, "rejected": second}
        found = converted("dpo", {"chosen": "Q a", "rejected": "Q b"}, values)
        if isinstance(expected, tuple):
            assert found == dict(zip(("prompt", *names), expected, strict=True))
        else:
            assert found == expected


def test_texts_that_hold_their_prompt_take_no_other_column_before_it() -> None:
    texts = {"chosen": "Q a", "rejected": "Q b", "system": "S"}
    with pytest.raises(ValueError, match=r"methods\.column_before_paired_texts.*columns='system'"):
        shape_of("dpo", texts)
    chats = {"chosen": [USER, GOOD], "rejected": [USER, BAD], "system": "S"}
    system = {"role": "system", "content": "S"}
    for rows in ((chats,), (texts, chats), (chats, texts)):  # not all of them are texts
        row = shape_of("dpo", *rows).row(Row(chats, "rows.jsonl", 1))
        assert plainly(row) == CHAT_PAIR | {"prompt": [system, USER]}


def test_what_both_conversations_begin_with_is_the_prompt() -> None:
    again = [USER, GOOD, USER]
    longer = {"chosen": [*again, GOOD], "rejected": [*again, BAD, USER, GOOD]}
    expected = {"prompt": again, "chosen": [GOOD], "rejected": [BAD, USER, GOOD]}
    assert one("dpo", longer) == expected
    found = converted("dpo", longer, {"chosen": [GOOD, USER], "rejected": [BAD, USER]})
    assert found == "no supervised token"
    shorter = {"chosen": [USER, GOOD], "rejected": [USER, GOOD, USER, BAD]}
    assert converted("dpo", longer, shorter) == "no supervised token"  # one of them says no more
    empty = [USER, {"role": "assistant", "content": " "}]
    assert isinstance(converted("dpo", longer, {"chosen": [USER, GOOD], "rejected": empty}), str)


def test_an_answer_column_that_no_row_answers_with_is_refused() -> None:
    values = {
        "prompt": "Say a.",
        "score": 3.5,
        "b": b"x",
        "nothing": None,
        "image": "y",
        "ok": True,
    }
    row = one("grpo", values)
    assert row == {"prompt": [USER], "score": 3.5, "ok": True}
    with pytest.raises(ValueError, match=r"methods\.prompt_column_missing"):
        shape_of("grpo", values, answer_column="score")
    for setting in ("prompt_column", "answer_column"):
        with pytest.raises(
            ValueError,
            match=rf"setting=data\.{setting}, reason=.*what=column, name=nothing,",
        ):
            shape_of("grpo", values, **{setting: "nothing"})
        with pytest.raises(
            ValueError,
            match=rf"setting=data\.{setting}, reason=.*what=column, name=nothing,",
        ):
            shape_of("kto", JUDGED | values, **{setting: "nothing"})


def test_prompts_alone_are_prompts() -> None:
    values = {"prompt": "Say a.", "system": "S", "note": "x"}
    shape = shape_of("grpo", values)
    assert shape.kind is RowKind.PROMPTS
    assert shape.used == {"prompt", "system"}
    system = {"role": "system", "content": "S"}
    assert one("grpo", values) == {"prompt": [system, USER]} | values | {"prompt": [system, USER]}


def test_a_prompt_ends_before_its_last_answers() -> None:
    for prompt_given, expected in (
        ([USER, GOOD], [USER]),
        ([USER, GOOD, GOOD], [USER]),
        ([GOOD, USER], [GOOD, USER]),
        ([USER, GOOD, USER, BAD], [USER, GOOD, USER]),
    ):
        assert one("dpo", CHAT_PAIR | {"prompt": prompt_given})["prompt"] == expected


def test_an_answer_may_be_a_call_alone() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"name": "do"}]}
    row = one("dpo", {"chosen": [USER, called], "rejected": [USER, BAD]})
    assert row == {"prompt": [USER], "chosen": [called], "rejected": [BAD]}
    assert one("kto", {"messages": [USER, called], "label": True})["completion"] == [called]


def test_what_differs_begins_with_an_answer_that_has_content() -> None:
    pair = {"chosen": [USER, GOOD], "rejected": [USER, BAD]}
    other, empty = {"role": "user", "content": "?"}, {"role": "assistant", "content": " "}
    for chosen in ([USER, other, GOOD], [USER, empty, USER, GOOD]):
        assert converted("dpo", pair, pair | {"chosen": chosen}) == "no supervised token"
    longer = {"chosen": [USER, GOOD, BAD], "rejected": [USER, GOOD, GOOD]}
    assert one("dpo", longer) == {"prompt": [USER, GOOD], "chosen": [BAD], "rejected": [GOOD]}


def test_a_row_has_its_place_and_is_a_conversation_with_each_answer() -> None:
    values = CHAT_PAIR | {"tools": [{"name": "do"}]}
    row = shape_of("dpo", values).row(Row(values, "other.jsonl", 7))
    assert isinstance(row, MethodRow)
    for name, answer in (("chosen", GOOD), ("rejected", BAD)):
        found = row.conversation(name)
        assert found.messages() == [USER, answer]
        assert (found.source, found.line, found.num_given) == ("other.jsonl", 7, 1)
        assert found.inputs == row.inputs != ""
        assert [found.is_learnt(number) for number in range(2)] == [False, True]


def test_a_picture_anywhere_sets_a_row_aside() -> None:
    image = {"type": "image", "image": "a.png"}
    shown = {"role": "user", "content": [image, {"type": "text", "text": "Say a."}]}
    for prompt_given in ([shown], [USER, GOOD, shown], [shown, GOOD, USER]):
        assert converted("dpo", CHAT_PAIR, CHAT_PAIR | {"prompt": prompt_given}) == "picture"


def test_the_columns_of_a_pair_are_used_and_named() -> None:
    with_prompt = shape_of("dpo", PAIR)
    assert with_prompt.used == {"prompt", "chosen", "rejected"}
    assert with_prompt.reason == (
        "methods.one_is_better(reason=data.recognized_prompt(column=prompt), "
        "chosen=chosen, rejected=rejected)"
    )
    inside = shape_of("dpo", {"chosen": [USER, GOOD], "rejected": [USER, BAD]})
    assert inside.used == {"chosen", "rejected"}
    assert inside.reason.startswith(
        "methods.one_is_better(reason=methods.common_beginning_is_prompt"
    )


def test_one_answered_prompt_is_enough_for_answers_to_be_read() -> None:
    answered = {"prompt": "Say a.", "answer": "a"}
    for rows in ((answered, answered | {"answer": None}), (answered | {"answer": None}, answered)):
        row = shape_of("grpo", *rows).row(Row(answered, "rows.jsonl", 1))
        assert isinstance(row, MethodRow)
        assert [*row.answers] == ["answer"]


def test_labels_of_another_case_that_are_none_are_shown_in_part() -> None:
    values = {"prompt": "a", "completion": "b", "Label": "x" * 40}
    with pytest.raises(
        ValueError, match=r"methods\.label_values_unknown\(.*name=Label, values='x{22}…"
    ):
        shape_of("kto", values)


def test_a_text_beside_messages_shares_no_prompt() -> None:
    chats = {"chosen": [USER, GOOD], "rejected": [USER, BAD]}
    for mixed in ({"chosen": "Say a. b"}, {"rejected": "Say a. b"}):
        assert converted("dpo", chats, chats | mixed) == "no supervised token"
