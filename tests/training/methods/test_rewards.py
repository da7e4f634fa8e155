"""Rewards that are built in, one's own, and what is wrong with them before a model loads."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.training.methods.rewards import reward_functions, try_rewards

PEOPLE = {"type": "object", "required": ["name"], "properties": {"age": {"type": "integer"}}}
ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2=", "answer": "3"}]


def rewards(name: str, completions: list[Any], **columns: Any) -> list[float]:
    [function] = reward_functions([name])
    return list(function(prompts=[], completions=completions, **columns))  # type: ignore[arg-type]


def test_an_answer_is_exact_but_for_white_space_and_what_leads_to_it() -> None:
    given = ["2", " 2\n", "so it is #### 2", [{"role": "assistant", "content": "2"}], "22", ""]
    assert rewards("exact_answer", given, answer=["2"] * 6) == [1, 1, 1, 1, 0, 0]
    assert rewards("exact_answer", ["72"], answer=["6*12 = 72\n#### 72"]) == [1]


def test_a_format_is_a_regular_expression_for_all_of_it() -> None:
    pattern = r"format=<think>.*</think>\s*\d{1,3}"
    given = ["<think>a\nb</think> 12", "<think></think>1", "12", "<think></think>12 or so"]
    assert rewards(pattern, given) == [1, 1, 0, 0]


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


@pytest.mark.parametrize(
    ("number", "body", "sentence"),
    [
        (0, "return [1 / 0]", "fails on the first rows with ZeroDivisionError"),
        (1, "return [1.0]", "not a list with a number for each of 2 completions"),
        (2, "return 1.0", "gives float, not a list"),
        (3, "return ['a', 'b']", "gives 'a', which is no number"),
        (4, "return [float('nan')] * 2", "gives nan, which is no number"),
    ],
)
def test_a_wrong_function_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, body: str, sentence: str
) -> None:
    names = own(tmp_path, monkeypatch, body, f"own_wrong_{number}")
    with pytest.raises(ValueError, match=r"training\.rewards: own_wrong") as raised:
        try_rewards(names, reward_functions(names), ROWS)
    assert sentence in str(raised.value)
