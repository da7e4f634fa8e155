"""`temper bench`: latencies side by side, and a program that another consumer can load."""

import json
from pathlib import Path

import pytest
import torch

from infrastructure.commands.main import main
from infrastructure.deployment.inference import Logits
from infrastructure.optimization import inference
from tests.slow import slow

SHAPE = ["--rows", "2", "--length", "16"]
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, about tracing and compiling


@slow
def test_a_program_is_saved_that_answers_like_the_model(
    tmp_path: Path, saved_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    program = tmp_path / "model.pt2"
    arguments = ["bench", str(saved_llama), *SHAPE, "--save", str(program), "--json"]
    assert main([*arguments, "--output", str(tmp_path / "runs")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"export", "torchscript"} <= {*facts["seconds_of_method"], *facts["failures"]}
    measured = [facts["before_seconds"], *facts["seconds_of_method"].values()]
    assert facts["after_seconds"] == min(measured)
    tokens = torch.randint(300, (2, 16))
    model = Logits(AutoModelForCausalLM.from_pretrained(saved_llama)).eval()
    with torch.inference_mode():
        torch.testing.assert_close(torch.export.load(program).module()(tokens), model(tokens))


def test_to_a_person_it_is_a_table_with_a_verdict(
    tmp_path: Path,
    saved_llama: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without compiling, which is half a minute, and is in the slow test above."""
    monkeypatch.delitem(inference.METHODS, "compile")
    arguments = ["bench", str(saved_llama), *SHAPE, "--output", str(tmp_path)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "commands.model_unchanged()" in shown
    assert "commands.fastest_method" in shown


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--length", "129"], "deployment.length_exceeds_positions(length=129, positions=128)"),
        (["--rows", "0"], "commands.inference_size_too_small(flag=--rows, value=0)"),
        (
            ["--save", "model.onnx"],
            "commands.unknown_program_extension(path=model.onnx, extensions=.pt2, .ts)",
        ),
        (["--save", "."], "commands.program_file_exists"),
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
