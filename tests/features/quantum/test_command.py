"""`temper quantum solve`: a problem from a file, an answer, and an error where there is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands.main import main
from infrastructure.features.quantum import command
from tests.features.quantum.samplers.questions import random_model

MISBEHAVING = "tests.features.quantum.samplers.misbehaving"


@pytest.fixture
def problem(tmp_path: Path) -> str:
    values = {"linear": {"a": -1, "b": 2, "c": -3}, "quadratic": [["a", "c", 2.5]], "offset": 1}
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_the_answer_is_printed_for_people(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantum", "solve", problem]) == 0
    out = capsys.readouterr().out
    assert "energy   -2" in out
    assert "sampler  exact: quantum." in out
    assert "ones     1: c" in out


@pytest.mark.parametrize(
    ("num_ones", "shown"),
    [(0, "0: none"), (1, "1: 1"), (20, "20: "), (23, "23: ")],
)
def test_the_first_ones_are_named(num_ones: int, shown: str) -> None:
    facts: Any = {"file": "a.json", "num_variables": 30, "num_interactions": 7, "reason": "small"}
    facts |= {"variables": list(range(30)), "energy": -1 / 3, "sampler": "exact", "seconds": 1.005}
    facts["values"] = [-1, *[1] * num_ones, *[0] * (29 - num_ones)]
    named = ", ".join(map(str, range(1, min(num_ones, 20) + 1)))
    more = ", and 3 more" if num_ones == 23 else ""
    assert command._lines(facts) == [
        "a.json: 30 variables, 7 interactions",
        "energy   -0.3333333333",
        "sampler  exact: small",
        "time     1.00 s",
        f"ones     {shown}{named if num_ones > 1 else ''}{more}",
    ]


@pytest.mark.parametrize("sampler", ["dense_annealer", "simulated_annealing"])
def test_the_answer_is_printed_for_programs(
    sampler: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quantum-solver", sampler, "--seed", "3", "--json"]
    assert main(["quantum", "solve", problem, *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    sample = dict(zip(facts["variables"], facts["values"], strict=True))
    assert sample == {"a": 0, "b": 0, "c": 1}
    assert facts["energy"] == -2
    assert facts["sampler"] == sampler


def test_a_large_problem_is_answered_within_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.bqm"
    with random_model(400, 0).to_file() as written:
        path.write_bytes(written.read())
    assert main(["quantum", "solve", str(path), "--quantum-timeout", "0.5"]) == 0
    assert ", and " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--quantum-solver", "anneal"], "what=sampler, name=anneal,"),
        (["--quantum-solver", f"{MISBEHAVING}:Raising"], "quantum.sampler_failed"),
        (["--quantum-timeout", "0"], "setting=quantum.timeout"),
    ],
)
def test_what_cannot_be_done_is_an_error(
    arguments: list[str], code: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantum", "solve", problem, *arguments]) == 2
    assert code in capsys.readouterr().err


def test_a_wrong_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npz"
    path.write_text("no archive")
    assert main(["quantum", "solve", str(path)]) == 2
    assert "quantum.unreadable_model_file" in capsys.readouterr().err
    assert main(["quantum", "solve", str(tmp_path / "none.bqm")]) == 2
    assert "quantum.model_file_missing" in capsys.readouterr().err
