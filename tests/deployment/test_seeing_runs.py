"""A whole run of a model of text that gets a tower: trained, asked, measured and exported."""

import json
from pathlib import Path

import pytest
import torch

from infrastructure.commands import main as commands
from infrastructure.core.exit_codes import ExitCode
from tests.slow import slow
from tests.training.seeing_models import save_llava, save_text_model, save_tower, write_colours

TRAIN = (
    "train rows/colours.jsonl --model text --enabled-extensions multimodal"
    " --multimodal-vision-tower tower --batch-size 6 --learning-rate 1e-2"
    " --warmup-steps 2 --max-length 128 --validation-split 0.25 --no-monitoring --no-testing"
    " --accept-small-data"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    save_text_model(folder / "text")
    save_tower(folder / "tower")
    write_colours(folder / "rows", 36)
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are typed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TEMPER_CACHE__DIRECTORY", str(folder / "cache"))
    return folder


def call(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = commands.main(words.split())
    out, err = capsys.readouterr()
    return code, out, err


@slow
def test_a_run_that_gets_a_tower_is_used_like_any_other(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(f"{TRAIN} --epochs 20 --name one", capsys)
    assert code == ExitCode.DONE, err
    assert "temper ask" in out
    assert "--image FILE" in out
    (run,) = (here / "runs").glob("*one*")
    record = json.loads((run / "run.json").read_text())
    assert record["model"]["sees"] is True
    assert record["model"]["second_base"]["sha256"]
    summary = json.loads((run / "summary.json").read_text())
    assert "deployment.forecast_summary" in out
    assert summary["after"]["exact_match"]["all"] > summary["before"]["exact_match"]["all"]
    forecast = {row["what"]: row for row in summary["forecast"]}
    assert forecast.keys() >= {"seconds", "peak_memory_bytes", "disk_bytes"}
    assert abs(forecast["peak_memory_bytes"]["error"]) < 0.15
    # beside a model so small, the run's files in each version weigh as much as its weights
    assert abs(forecast["disk_bytes"]["error"]) < 0.15

    question = ["ask", str(run), "Which colour is it?", "--json", "--max-tokens", "8"]
    answers = []
    for number in range(3):
        assert commands.main([*question, "--image", f"rows/pictures/{number}.png"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["answer"])
    assert answers == ["red", "green", "blue"]
    assert commands.main(question) == 0  # a model that sees answers without a picture, too
    capsys.readouterr()

    code, out, err = call(f"eval {run} rows/colours.jsonl --json", capsys)
    assert code == ExitCode.DONE, err
    assert json.loads(out)["scores"]["all"]["exact_match"]["value"] > 0.9

    code, out, err = call(f"export {run} whole --as merged", capsys)
    assert code == ExitCode.DONE, err
    facts = json.loads((here / "whole" / "export.json").read_text())
    assert facts["compared"][0]["logits_distance"] < 1e-3
    same_answer_in_transformers(here / "whole", here / "rows" / "pictures" / "1.png")
    for refused in ("--format torch-export", "--bits 4"):
        code, out, err = call(f"export {run} small --as merged {refused}", capsys)
        assert code == ExitCode.WRONG_INPUT
        assert "deployment.export_vision_model(" in err
    assert not (here / "small").exists()


def test_a_lora_and_its_projector_are_exported_as_one_model(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = TRAIN.replace(" --no-testing", "")  # so with the checks before the run
    code, _, err = call(f"{words} --lora --epochs 1 --validation-prompts 0 --name two", capsys)
    assert code == ExitCode.DONE, err
    (run,) = (here / "runs").glob("*two*")
    code, _, err = call(f"export {run} merged --as merged", capsys)
    assert code == ExitCode.DONE, err
    facts = json.loads((here / "merged" / "export.json").read_text())
    assert facts["compared"][0]["read_by"] == "transformers"
    assert facts["compared"][0]["logits_distance"] < 1e-3


@slow
def test_a_lora_on_four_bits_of_a_model_that_sees_is_exported(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a LoRA, and added to the base that was rounded for it; that one has its own weights."""
    save_llava(here / "llava", 64)  # bitsandbytes' CPU kernels take widths of 64 and more
    words = TRAIN.partition(" --model")[0] + " --model llava" + TRAIN.partition(" tower")[2]
    lora = "--lora --quantization 4bit --epochs 2 --validation-prompts 0 --name four"
    code, _, err = call(f"{words} {lora}", capsys)
    assert code == ExitCode.DONE, err
    (run,) = (here / "runs").glob("*four*")
    assert json.loads((run / "run.json").read_text())["model"]["quantization"] == "4bit"
    for part in ("lora", "merged"):
        code, _, err = call(f"export {run} four-{part} --as {part}", capsys)
        assert code == ExitCode.DONE, err
        (compared,) = json.loads((here / f"four-{part}" / "export.json").read_text())["compared"]
        assert compared["logits_distance"] < 1e-3
    picture = str(here / "rows" / "pictures" / "1.png")
    code, _, err = call(f"ask four-merged red? --image {picture} --max-tokens 2", capsys)
    assert code == ExitCode.DONE, err


def same_answer_in_transformers(folder: Path, file: Path) -> None:
    """By the processor's own way, with messages in parts."""
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    parts = [{"type": "image"}, {"type": "text", "text": "Which colour is it?"}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True
    )
    given = processor(text=[text], images=[Image.open(file)], return_tensors="pt")
    with torch.no_grad():
        written = model.generate(**given, max_new_tokens=6, do_sample=False)
    answer = processor.decode(written[0, given["input_ids"].shape[1] :])
    assert answer.startswith("green")
