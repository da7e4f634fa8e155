"""Rows of every shape that people have become what TRL's trainers read, or say why not."""

from typing import Any

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.training.data.readers.rows import BadRow, Row
from infrastructure.training.methods.method_rows import MethodRow, MethodShape, recognise
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


@pytest.mark.parametrize(
    ("values", "reason", "detail"),
    [
        (PAIR | {"rejected": "a"}, "no preference", "say the same"),
        (PAIR | {"chosen": None}, "empty", "'chosen' is empty"),
        ({"prompt": "Say a.", "rejected": "b"}, "missing column", "no column 'chosen'"),
        (PAIR | {"chosen": " "}, "empty", "'chosen' is empty"),
        (PAIR | {"chosen": 3.5}, "wrong type", "a number, not text"),
        (PAIR | {"prompt": ""}, "empty", "'prompt' is empty"),
        (PAIR | {"chosen": [USER, GOOD]}, "no supervised token", "does not begin with an answer"),
        (PAIR | {"chosen": [{"type": "image"}]}, "wrong type", "a list, not text"),
        (CHAT_PAIR | {"rejected": [USER]}, "no supervised token", "does not begin with an answer"),
        (CHAT_PAIR | {"prompt": [GOOD]}, "empty", "asks nothing"),
        (CHAT_PAIR | {"chosen": [{"role": "wizard", "content": "a"}]}, "wrong type", "wizard"),
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
        ("dpo", {"prompt": "a", "completion": "b"}, "no columns chosen and rejected"),
        (
            "dpo",
            {"prompt": "a", "response_a": "b", "response_b": "c"},
            "nothing says which is better",
        ),
        ("orpo", {"prompt": "a", "completion": "b", "label": True}, "training.method = kto learns"),
        ("kto", {"prompt": "a", "completion": "b"}, "no column label"),
        ("kto", {"text": "a", "label": True}, "answers prompts"),
        ("grpo", PAIR, "training.method = dpo learns"),
        ("grpo", {"text": "a"}, "no column of prompts is known"),
    ],
)
def test_other_rows_are_refused_with_the_way_on(
    method: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"columns|column|answers") as raised:
        shape_of(method, values)
    assert sentence in str(raised.value)
