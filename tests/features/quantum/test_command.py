"""`temper quantum solve`: a problem from a file, an answer, and sentences where there is none."""

import json
import re
from pathlib import Path

import pytest

from infrastructure.commands.main import main
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
    assert "3 variables, 1 interactions" in out
    assert "energy   -2" in out
    assert "sampler  exact: quantum." in out
    assert "quantum.time_limit_kept" in out
    assert "ones     1: c" in out


def test_the_answer_is_printed_for_programs(
    problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--sampler", "dense_annealer", "--seed", "3", "--num-ones", "2", "--json"]
    assert main(["quantum", "solve", problem, *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    sample = dict(zip(facts["variables"], facts["values"], strict=True))
    assert sample == {"a": 1, "b": 0, "c": 1}
    assert facts["energy"] == -0.5
    assert facts["num_ones"] == 2
    assert facts["is_limit_kept"]
    assert facts["sampler"] == "dense_annealer"


def test_a_sampler_in_another_process(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--sampler", "simulated_annealing", "--reads", "3", "--json"]
    assert main(["quantum", "solve", problem, *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["energy"] == -2
    assert facts["num_reads"] == 3


def test_a_search_that_would_go_on_is_cut_off_by_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.bqm"
    with random_model(1000, 0).to_file() as written:
        path.write_bytes(written.read())
    arguments = ["--reads", "10000", "--time-limit", "0.5", "--seed", "0"]
    assert main(["quantum", "solve", str(path), *arguments]) == 0
    out = capsys.readouterr().out
    # Where the machine has too much to do, a last read takes longer than the grace, and it says so.
    assert re.search(r"quantum\.time_limit_kept.*kept=(within|over)", out)
    assert ", and " in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sampler", "anneal"], "what=sampler, name=anneal,"),
        (["--sampler", f"{MISBEHAVING}:Raising"], "quantum.sampler_failed"),
        (["--sampler", f"{MISBEHAVING}:Empty"], "quantum.sampler_returned_nothing"),
        (["--sampler", "tabu", "--num-ones", "2"], "quantum.sampler_parameter_unknown"),
        (["--num-ones", "4"], "quantum.exact_num_ones_out_of_range"),
        (["--time-limit", "0"], "quantum.invalid_time_limit(seconds=0.0)"),
        (["--time-limit", "soon"], "commands.value_must_be(kind=a number, value='soon')"),
        (["--reads", "0"], "quantum.number_too_small(flag=--reads, value=0, minimum=1)"),
        (
            ["--sampelr", "tabu"],
            "commands.unknown_argument(arguments='--sampelr'commands.did_you_mean(meant=--sampler))",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], sentence: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantum", "solve", problem, *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error
    assert error.splitlines()[-1].startswith("temper: ")


def test_a_wrong_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npz"
    path.write_text("no archive")
    assert main(["quantum", "solve", str(path)]) == 2
    assert "quantum.unreadable_model_file" in capsys.readouterr().err
    assert main(["quantum", "solve", str(tmp_path / "none.bqm")]) == 2
    assert "quantum.model_file_missing" in capsys.readouterr().err
    assert main(["quantum"]) == 2
    assert "ACTION" in capsys.readouterr().err
