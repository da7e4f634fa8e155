"""`temper bench`: latencies side by side."""

import json
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.core.hardware import processor
from infrastructure.features.inference import methods
from infrastructure.features.inference.methods import InferenceResult
from tests.slow import slow

SHAPE = ["--rows", "2", "--length", "16"]
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, about tracing and compiling


@slow
def test_the_fastest_way_is_named_and_each_is_measured(
    tmp_path: Path, saved_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", str(saved_llama), *SHAPE, "--json", "--output", str(tmp_path)]
    assert main(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"export", "torchscript"} <= {*facts["seconds_of_method"], *facts["failures"]}
    measured = [facts["before_seconds"], *facts["seconds_of_method"].values()]
    assert facts["after_seconds"] == min(measured)


def test_to_a_person_it_is_a_table_with_a_verdict(
    tmp_path: Path,
    saved_llama: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without compiling, which is half a minute, and is in the slow test above."""
    monkeypatch.delitem(methods.METHODS, "compile")
    arguments = ["bench", str(saved_llama), *SHAPE, "--output", str(tmp_path)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "inference.model_unchanged()" in shown
    assert "inference.fastest_method" in shown


def test_all_that_was_measured_is_shown(
    tmp_path: Path,
    saved_llama: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The default is one row of 128 tokens."""
    ways = {"export": 0.002, "compile": 0.0005}
    results = {
        "compile": InferenceResult(print, "compile", 0.001, 0.0005, ways, {"x": "E: no"}),
        "eager": InferenceResult(print, "eager", 0.001, 0.001),
    }
    sizes: list[tuple[int, int]] = []

    def find(config: object, *size: int) -> tuple[InferenceResult, list[str]]:
        sizes.append(size)  # type: ignore[arg-type]
        return results[method], ["note: 1"]

    monkeypatch.setattr(methods, "find_fastest_inference", find)
    bench = ["bench", str(saved_llama), "--output", str(tmp_path)]
    method = "compile"
    assert main([*bench, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        **{"model": str(saved_llama), "num_rows": 1, "length": 128},
        **{"processor": processor().model, "method": "compile", "before_seconds": 0.001},
        **{"after_seconds": 0.0005, "seconds_of_method": ways, "failures": {"x": "E: no"}},
    }
    assert main([*bench, *SHAPE]) == 0
    assert sizes == [(1, 128), (2, 16)]
    shown = capsys.readouterr().out.splitlines()
    title, _, *lines = shown[shown.index("note: 1") + 1 :]
    assert title.split()[-2:] == ["latency", "speed"]
    assert [line.split() for line in lines[:3]] == [
        ["inference.model_unchanged()", "1.00", "ms", "1.00", "x"],
        ["export", "2.00", "ms", "0.50", "x"],
        ["compile", "0.50", "ms", "2.00", "x"],
    ]
    assert lines[3:] == [
        "inference.method_not_possible(method=x, reason=E: no)",
        "inference.fastest_method(method=compile, speedup=2.0)",
    ]
    method = "eager"
    assert main(bench) == 0
    best = "inference.fastest_method(method=inference.model_unchanged(), speedup=1.0)"
    assert capsys.readouterr().out.splitlines()[-1] == best


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--length", "129"], "inference.length_exceeds_positions(length=129, positions=128)"),
        (["--length", "0"], "inference.size_too_small(flag=--length, value=0)"),
        (["--rows", "0"], "inference.size_too_small(flag=--rows, value=0)"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_measures_nothing(
    tmp_path: Path,
    saved_llama: Path,
    flags: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", str(saved_llama), *flags, "--output", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert "latency" not in captured.out
