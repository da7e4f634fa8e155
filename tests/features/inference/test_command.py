"""`temper bench`: latencies side by side."""

import json
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.features.inference import methods
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


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--length", "129"], "inference.length_exceeds_positions(length=129, positions=128)"),
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
