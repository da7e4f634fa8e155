"""Rows of every shape that people have become what TRL's trainers read, or say why not."""

from typing import Any

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.training.data.readers.rows import BadRow, Row
from infrastructure.training.methods.method_rows import MethodShape, recognise
from infrastructure.training.methods.method_table import RowKind

USER = {"role": "user", "content": "Say a."}
GOOD = {"role": "assistant", "content": "a"}
BAD = {"role": "assistant", "content": "b"}
PAIR = {"prompt": "Say a.", "chosen": "a", "rejected": "b"}
CHAT_PAIR = {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}


def shape_of(method: str, *values: dict[str, Any], **settings: Any) -> MethodShape:
    rows = [Row(value, "rows.jsonl", n) for n, value in enumerate(values, 1)]
    return recognise(rows, DataConfig(path="rows.jsonl", **settings), method)


def one(method: str, values: dict[str, Any], **settings: Any) -> Any:
    return shape_of(method, values, **settings).row(Row(values, "rows.jsonl", 1))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (PAIR, PAIR),
        ({"question": "Say a.", "chosen": "a", "rejected": "b"}, PAIR),
        ({"instruction": "Say a.", "response_j": "a", "response_k": "b"}, PAIR),
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
        (
            {"prompt": "Say a.", "chosen": [GOOD], "rejected": [BAD]},
            PAIR | CHAT_PAIR | {"prompt": "Say a."},
        ),
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
                "is_plain": True,
            },
        ),
    ],
)
def test_pairs(values: dict[str, Any], expected: dict[str, Any]) -> None:
    shape = shape_of("dpo", values)
    assert shape.kind is RowKind.PAIRS
    assert shape.row(Row(values, "rows.jsonl", 1)) == expected


@pytest.mark.parametrize(
    ("values", "reason", "detail"),
    [
        (PAIR | {"rejected": "a"}, "no preference", "say the same"),
        (PAIR | {"chosen": None}, "missing column", "no column 'chosen'"),
        (PAIR | {"chosen": " "}, "empty", "'chosen' is empty"),
        (PAIR | {"chosen": 3}, "wrong type", "a number, not text"),
        (PAIR | {"prompt": ""}, "empty", "'prompt' is empty"),
        (PAIR | {"chosen": [GOOD]}, "wrong type", "a text or messages"),
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
        assert row == {"prompt": "Say a.", "completion": "a", "label": expected}


def test_pairs_serve_kto_and_conversations_do() -> None:
    assert one("kto", PAIR) == PAIR
    row = one("kto", {"messages": [USER, GOOD], "label": True})
    assert row == {"prompt": [USER], "completion": [GOOD], "label": True}


def test_prompts_bring_their_answers_and_what_else_is_plain() -> None:
    row = one("grpo", {"question": "1+1?", "answer": "2", "level": 3, "tags": ["x"]})
    assert row == {"question": "1+1?", "prompt": "1+1?", "answer": "2", "level": 3}
    row = one("rloo", {"messages": [USER, GOOD]})
    assert row == {"prompt": [USER], "answer": "a"}
    row = one("distillation", {"prompt": "Say a.", "note": "x"})
    assert row == {"prompt": "Say a.", "note": "x"}
    row = one(
        "grpo", {"task": "Say a.", "solution": "a"}, prompt_column="task", answer_column="solution"
    )
    assert (row["prompt"], row["answer"]) == ("Say a.", "a")


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
