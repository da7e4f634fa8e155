"""Rewards that are built in, one's own, and what is wrong with them before a model loads."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infrastructure.training.methods.rewards import (
    given_values,
    needs_answers,
    reward_function,
    reward_functions,
    try_rewards,
)

PEOPLE = {"type": "object", "required": ["name"], "properties": {"age": {"type": "integer"}}}
ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2=", "answer": "3"}]


def rewards(name: str, completions: list[Any], **columns: Any) -> list[float]:
    [function] = reward_functions([name])
    return list(function(prompts=[], completions=completions, **columns))  # type: ignore[arg-type]


def test_an_answer_is_exact_but_for_white_space_and_what_leads_to_it() -> None:
    given = ["2", " 2\n", "so it is #### 2", [{"role": "assistant", "content": "2"}], "22", ""]
    assert rewards("exact_answer", given, answer=["2"] * 6) == [1, 1, 1, 1, 0, 0]
    assert rewards("exact_answer", ["72"], answer=["6*12 = 72\n#### 72"]) == [1]
    twice = "first #### 3\nno, #### 2"  # the last one counts
    assert rewards("exact_answer", [twice, twice], answer=["2", "3"]) == [1, 0]
    parts = [{"content": "1"}, {"content": None}, {"role": "assistant"}, {"content": "2"}]
    assert rewards("exact_answer", [parts, parts[1:3]], answer=["12", ""]) == [1, 1]
    chosen = [["format=a"], [], ["format=a", "exact_answer"]]
    assert [needs_answers(names) for names in chosen] == [False, False, True]


def test_a_format_is_a_regular_expression_for_all_of_it() -> None:
    pattern = r"format=<think>.*</think>\s*\d{1,3}"
    given = ["<think>a\nb</think> 12", "<think></think>1", "12", "<think></think>12 or so"]
    assert rewards(pattern, [*given, " <think></think>1\n"]) == [1, 1, 0, 0, 1]


def test_json_fits_a_schema(tmp_path: Path) -> None:
    (tmp_path / "people.json").write_text(json.dumps(PEOPLE))
    given = ['{"name": "Ada", "age": 36}', '{"age": 36}', '{"name": "Ada", "age": "x"}', "no JSON"]
    assert rewards(f"json_schema={tmp_path / 'people.json'}", given) == [1, 0, 0, 0]


def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, module: str) -> list[str]:
    (tmp_path / f"{module}.py").write_text(f"def short(completions, answer, **_):\n    {body}\n")
    monkeypatch.chdir(tmp_path)
    return [f"{module}:short"]


def test_ones_own_function_is_called_as_trl_will(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = own(tmp_path, monkeypatch, "return [-float(len(c)) for c in completions]", "own_short")
    functions = reward_functions(names)
    try_rewards(names, functions, ROWS)
    assert list(functions[0](completions=["abc"], answer=["x"])) == [-3]


def rows_of(count: int, **columns: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}+1=", "answer": f"{n + 1}", **columns} for n in range(count)]


def test_a_function_is_tried_with_all_rows_and_with_a_few() -> None:
    """Each argument has a value for each of them, in the form that TRL gives it."""
    calls: list[dict[str, Any]] = []

    def reward(**given: Any) -> list[float]:
        calls.append(given)
        return [0.0] * len(given["prompts"])

    rows = rows_of(7, level=3)
    try_rewards(["mine"], [reward], rows)
    for call, count in zip(calls, (7, 4), strict=True):
        assert call.pop("trainer_state") is None
        assert {name: len(values) for name, values in call.items()} == dict.fromkeys(
            ("prompts", "completions", "completion_ids", "answer", "level"), count
        )
        assert call["prompts"] == [row["prompt"] for row in rows[:count]]
        assert call["completions"] == call["answer"] == [row["answer"] for row in rows[:count]]
    chat = [{"prompt": [{"role": "user", "content": "a"}]}] * 2
    try_rewards(["mine"], [reward], chat)
    assert calls[2]["completions"] == [[{"role": "assistant", "content": ""}]] * 2


def test_one_that_is_silent_on_every_right_answer_is_refused_where_no_other_one_speaks() -> None:
    def silent(prompts: Sequence[str], **_: Any) -> list[None]:
        return [None] * len(prompts)

    def partly(prompts: Sequence[str], **_: Any) -> list[float | None]:
        return [None, *[1.0] * (len(prompts) - 1)]

    with pytest.raises(
        ValueError, match=r"rewards_all_none\(names=silent and silent too, count=5\)"
    ):
        try_rewards(["silent", "silent too"], [silent, silent], rows_of(5))
    try_rewards(["silent", "partly"], [silent, partly], rows_of(5))
    try_rewards(["partly"], [partly], rows_of(5))
    try_rewards(["silent"], [silent], rows_of(4))  # too few to judge by
    try_rewards(["silent"], [silent], [{"prompt": row["prompt"]} for row in rows_of(9)])


def test_values_that_come_as_text_are_read_where_they_are_given() -> None:
    def reward(**given: Any) -> list[float]:
        assert given == {"tests": [[1], None], "level": ["2", "3"]}
        return [0.0, 0.0]

    columns = {"tests": ["[1]", "null"], "level": ["2", "3"]}
    assert list(given_values(reward, frozenset({"tests", "meta"}))(**columns)) == [0, 0]
    assert given_values(reward, frozenset()) is reward


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("format", "methods.reward_without_value(kind=format)"),
        ("json_schema=", "methods.reward_without_value(kind=json_schema)"),
        ("exact_answer=1", "methods.unknown_reward(reason="),
        ("length=5", "methods.unknown_reward(reason="),
    ],
)
def test_a_name_that_is_no_reward_is_refused(name: str, refusal: str) -> None:
    with pytest.raises(ValueError, match=re.escape(refusal)):
        reward_function(name)


@pytest.mark.parametrize(
    ("number", "body", "sentence"),
    [
        (
            0,
            "return [1 / 0]",
            "methods.reward_raised(name=own_wrong_0:short, error_type=ZeroDivisionError, "
            "error=division by zero, "
            "arguments=prompts, completions, completion_ids, answer, trainer_state)",
        ),
        (
            1,
            "return [1.0]",
            "methods.reward_not_a_list(name=own_wrong_1:short, returned=list of 1, count=2)",
        ),
        (
            2,
            "return 1.0",
            "methods.reward_not_a_list(name=own_wrong_2:short, returned=float, count=2)",
        ),
        (3, "return ['a', 'b']", "methods.reward_not_a_number(name=own_wrong_3:short, reward=a)"),
        (
            4,
            "return [float('nan')] * 2",
            "methods.reward_not_a_number(name=own_wrong_4:short, reward=nan)",
        ),
        (
            5,
            "return [0.5, float('inf')]",
            "methods.reward_not_a_number(name=own_wrong_5:short, reward=inf)",
        ),
    ],
)
def test_a_wrong_function_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, body: str, sentence: str
) -> None:
    names = own(tmp_path, monkeypatch, body, f"own_wrong_{number}")
    with pytest.raises(ValueError, match=re.escape(sentence)):
        try_rewards(names, reward_functions(names), ROWS)
