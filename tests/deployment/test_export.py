"""Exports: each is read back and is the trained model, or it is refused and nothing is there."""

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import SUMS, write_record
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.json_text import as_list
from infrastructure.core.messages import WORDS
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.readers.rows import Turn
from infrastructure.deployment import export, export_request
from infrastructure.deployment.export import (
    Comparer,
    Comparison,
    Reference,
    Work,
    distance,
    export_checkpoint,
    export_model,
)
from infrastructure.deployment.export_request import ExportRequest, Part
from infrastructure.evaluation.plain_reading import QUESTIONS, OtherAnswersError
from infrastructure.evaluation.prompting import answer_questions
from infrastructure.features.publish.model_card import written_by
from infrastructure.models.fitting import DTYPES
from infrastructure.models.model_manager import load_saved
from infrastructure.models.quantization import quantized_layers
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.resume.fingerprint import base_facts
from tests.conftest import train_tiny_tokenizer
from tests.data.builders import CHATML
from tests.deployment.exports import TEMPLATE, facts_of, run_card, trained_lora
from tests.deployment.runs import deploy, small_config, small_settings, start_temper
from tests.slow import slow
from tests.training.methods.method_runs import configuration, run_folder, train


@pytest.fixture(scope="module")
def lora(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained_lora(tmp_path_factory.mktemp("lora"), saved_llama)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run, _ = deploy(small_config(tmp_path_factory.mktemp("whole"), max_steps=3))
    return RunDirectory(run)


def test_what_a_method_of_trl_has_trained_is_exported(saved_llama: Path, tmp_path: Path) -> None:
    """Also a LoRA that trains a LoRA further, where TRL keeps the first one to compare with. Its
    base has to be the one that it began with."""
    base = Path(shutil.copytree(saved_llama, tmp_path / "base"))
    model = {"name": str(base), "lora_config": {"r": 4}}
    runs: list[RunDirectory] = []
    for number in range(2):
        training = {"max_steps": 2, "warmup_steps": 9}
        config = configuration("dpo", tmp_path / str(number), base, model=model, training=training)
        assert train(config)["status"] == "finished"
        run = RunDirectory(run_folder(config))
        runs.append(run)
        model = {"name": str(run.final)}
    out = tmp_path / "merged"
    assert main(["export", str(run.path), str(out), "--as", "merged"]) == 0
    [compared] = facts_of(out)["compared"]
    assert (compared["read_by"], compared["same_choice"]) == ("transformers", 1.0)
    assert compared["logits_distance"] < 1e-4
    assert logits_of(out) == pytest.approx(logits_of(run.final), abs=1e-4)
    for other in (saved_llama, runs[0].final):
        assert logits_of(out) != pytest.approx(logits_of(other), abs=1e-4)
    card = (out / "README.md").read_text()
    num_rows = run.read_run()["data"]["num_examples"]
    for row in (
        "| method | DPO of TRL |",
        "publish.card_trained_lora(rank=4)",
        "`warmup_steps` 1,",
        f"| rows | publish.card_rows_of_trainer(num_train={num_rows}) |",
    ):
        assert row in card, row
    assert "cross_entropy" not in card
    weights = load_file(base / "model.safetensors")
    save_file({name: tensor * 2 for name, tensor in weights.items()}, base / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"deployment\.export_base_differs"):
        export_model(runs[0], None, tmp_path / "other", ExportRequest(part=Part.MERGED))


def test_a_reward_model_is_not_exported_as_one_that_writes(
    saved_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configuration("reward", tmp_path, saved_llama, training={"max_steps": 1})
    train(config)
    for more in ([], ["--as", "merged"]):
        assert main(["export", str(run_folder(config)), str(tmp_path / "out"), *more]) == 2
        assert "deployment.export_reward_model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    run = RunDirectory(run_folder(config))
    code = written_by(run, "me/judge", run.final, 1).partition("```python")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace("me/judge", str(run.final)), names)  # the card's own words
    assert type(names["model"]).__name__ == "LlamaForSequenceClassification"


@pytest.mark.parametrize("has_template", [True, False])
def test_the_prompt_on_a_card_is_that_of_the_training(
    has_template: bool, whole: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt of another form makes a good model look broken."""
    folder = Path(shutil.copytree(whole.final, tmp_path / "model"))
    if not has_template:
        (folder / "chat_template.jinja").unlink()
        (folder / SUMS).unlink()
    card = written_by(whole, "me/model", folder, 1)
    code = card.partition("```python")[2].partition("```")[0].replace("me/model", str(folder))
    names: dict[str, Any] = {}
    exec(code.replace("max_new_tokens=256", "max_new_tokens=8"), names)
    [answer] = answer_questions(folder, ["your question"], max_tokens=8)
    assert capsys.readouterr().out.strip() == answer
    encoder = ConversationEncoder(names["tokenizer"], max_length=64)
    assert names["inputs"]["input_ids"].tolist() == [
        encoder.prompt_ids([Turn("user", "your question")])
    ]


def test_the_card_of_a_qlora_loads_its_base_in_four_bits(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORDS)
    settings = small_settings(tmp_path, num_epochs=1, max_steps=1, warmup_steps=0)
    settings["model"] = {"name": str(saved_llama), "lora_config": {"r": 4}, "quantization": "4bit"}
    run = RunDirectory(deploy(DeploymentConfig(**settings))[0])
    export_model(run, None, tmp_path / "out", ExportRequest())
    assert "| base | 4-bit NF4 |" in (tmp_path / "out" / "README.md").read_text()
    assert "loaded in 4-bit NF4." in (run.final / "README.md").read_text()
    monkeypatch.chdir(tmp_path / "out")
    assert quantized_layers(run_card(tmp_path / "out")["model"])


def logits_of(folder: Path) -> list[float]:
    """Of one text, by the model in a folder."""
    model = load_saved(folder, device=torch.device("cpu")).model
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[1, 20, 30, 40]])).logits
    return [float(number) for number in logits[0, -1]]


@pytest.mark.parametrize(
    ("request_of", "by", "files"),
    [
        ({}, "PEFT", ["adapter_model.safetensors"]),
        ({"part": Part.MERGED}, "transformers", ["model.safetensors"]),
        ({"bits": 8}, "transformers and bitsandbytes", ["model.safetensors"]),
        ({"bits": 4}, "transformers and bitsandbytes", ["model.safetensors"]),
    ],
)
def test_a_lora_is_exported_and_read_back(
    request_of: dict[str, Any],
    by: str,
    files: list[str],
    lora: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(WORDS)  # the card's program is one of the words
    exported = export_model(lora, None, tmp_path / "out", ExportRequest(**request_of))
    facts = facts_of(tmp_path / "out")
    [compared] = facts["compared"]
    assert compared["read_by"] == by
    assert compared["same_prompt"] is True
    if "bits" not in request_of:
        assert compared["logits_distance"] < 1e-4
        assert compared["same_choice"] == 1.0
    assert all((tmp_path / "out" / name).is_file() for name in files)
    assert facts["step"] == exported["step"]
    is_lora = (tmp_path / "out" / "adapter_config.json").is_file()
    assert any("part=merged" in str(note) for note in as_list(exported["notes"])) == is_lora
    if request_of.get("bits") in (8, 4):
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        assert config["quantization_config"][f"load_in_{request_of['bits']}bit"]
    monkeypatch.chdir(tmp_path / "out")
    # Its base has none; another template makes a good model look broken.
    assert run_card(tmp_path / "out")["tokenizer"].chat_template == TEMPLATE


@pytest.fixture(scope="module")
def rounding(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished run that has computed with weights of 4 bits."""
    settings = small_settings(tmp_path_factory.mktemp("rounding"), max_steps=3, learning_rate=0.05)
    settings["model"]["quantization_aware"] = "int4"
    settings["training"]["weight_decay"] = 0.1 + 0.2  # 0.30000000000000004
    run, lines = deploy(DeploymentConfig(**settings))
    assert any(line.split()[:1] == ["final-int4"] for line in lines)
    return RunDirectory(run)


@pytest.mark.filterwarnings("ignore")  # torchao's own, at its import
@pytest.mark.parametrize(
    ("request_of", "twin"),
    [({}, "final"), ({"bits": 4}, "final-int4")],
)
def test_a_run_that_rounds_is_exported_plain_or_as_it_has_computed(
    request_of: dict[str, Any], twin: str, rounding: RunDirectory, tmp_path: Path
) -> None:
    exported = export_model(rounding, None, tmp_path / "out", ExportRequest(**request_of))
    [compared] = facts_of(tmp_path / "out")["compared"]
    assert compared["logits_distance"] < 1e-4
    is_plain = "bits" not in request_of
    card = (tmp_path / "out" / "README.md").read_text()
    assert any(
        "deployment.exported_without_rounding(" in str(note) for note in as_list(exported["notes"])
    ) == (is_plain)
    assert ("publish.card_measured_rounded" in card) == is_plain
    assert ("pip install torchao" in card) == (not is_plain)
    assert "`weight_decay` 0.3, " in card
    assert logits_of(tmp_path / "out") == logits_of(rounding.path / twin)
    other = rounding.path / ("final-int4" if is_plain else "final")
    assert logits_of(tmp_path / "out") != pytest.approx(logits_of(other), abs=1e-4)


def test_a_plain_model_names_the_rounded_one_beside_it(
    rounding: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rounding.read_configuration().data.path
    rounded = str(rounding.path / "final-int4")

    def names_rounded(shown: str) -> bool:
        return "models.weights_not_quantized(" in shown and f"={rounded})" in shown

    for model, is_plain in ((str(rounding.path), True), (rounded, False)):
        assert main(["ask", model, "Reverse 101", "--max-tokens", "2"]) == 0
        shown = capsys.readouterr()
        assert names_rounded(shown.err) == is_plain
        cache = ["--cache-directory", str(tmp_path), "--max-tokens", "2", "--measures", "f1"]
        assert main(["eval", model, str(rows), *cache]) == 0
        assert names_rounded(capsys.readouterr().out) == is_plain


def test_layers_that_four_bits_do_not_take_stay_in_sixteen(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, max_steps=1)
    settings["model"]["embedded"] |= {"hidden_size": 64, "intermediate_size": 48}
    run, _ = deploy(DeploymentConfig(**settings))
    out = tmp_path / "out"
    exported = export_model(RunDirectory(run), None, out, ExportRequest(bits=4))
    odd = [f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")]
    kept = f"deployment.export_layers_kept_at_16_bits(count={len(odd)}, layer={odd[0]})"
    assert kept in map(str, as_list(exported["notes"]))
    rounding = json.loads((out / "config.json").read_text())["quantization_config"]
    assert {*rounding["llm_int8_skip_modules"]} == {*odd, "lm_head"}
    weights = load_file(out / "model.safetensors")
    assert {weights[f"{name}.weight"].dtype for name in odd} == {torch.bfloat16}
    assert weights["model.layers.0.self_attn.q_proj.weight"].dtype == torch.uint8


def test_sixteen_bits_are_half_as_large(whole: RunDirectory, tmp_path: Path) -> None:
    for bits, name in ((None, "a"), (16, "b")):
        export_model(whole, None, tmp_path / name, ExportRequest(bits=bits))
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("a", "b")]
    assert sizes[1] < 0.6 * sizes[0]
    types = {tensor.dtype for tensor in load_file(tmp_path / "b" / "model.safetensors").values()}
    assert types == {torch.bfloat16}  # whose numbers reach as far as those that were trained


def test_the_checkpoint_that_is_named_is_exported_and_else_the_newest(
    whole: RunDirectory, tmp_path: Path
) -> None:
    manager = CheckpointManager(whole.checkpoints)
    oldest, newest = manager.checkpoints()[0], manager.newest()
    assert step_of(oldest) < step_of(newest)
    for name, checkpoint, given in (("a", oldest, oldest), ("b", newest, None)):
        facts = export_checkpoint(whole, given, tmp_path / name)
        assert (facts["step"], facts["checkpoint"]) == (step_of(checkpoint), str(checkpoint))
        written = load_file(tmp_path / name / "model.safetensors")
        trained = load_checkpoint(checkpoint).tensors["model"]
        assert all(torch.equal(written[key], trained[key]) for key in written)


def test_the_export_of_a_run_that_ended_with_its_best_model_is_of_that_step(
    whole: RunDirectory, tmp_path: Path
) -> None:
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / whole.run_id))
    best = CheckpointManager(run.checkpoints).checkpoints()[1]
    summary = read_summary(run)
    assert step_of(best) < summary["steps"]
    write_record(run.summary_file, {**summary, "final_step": step_of(best)})
    facts = export_model(run, None, tmp_path / "out", ExportRequest())
    recorded = facts_of(tmp_path / "out")
    assert facts["step"] == recorded["step"] == step_of(best)
    assert facts["checkpoint"] == recorded["checkpoint"] == str(best)
    written = load_file(tmp_path / "out" / "model.safetensors")
    trained = load_checkpoint(best).tensors["model"]
    assert all(torch.equal(written[key], trained[key]) for key in written)


def test_what_is_another_model_is_not_kept(
    lora: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted defect: the writer loses a matrix of the LoRA."""
    write = export.write_model

    def forgetful(model: Any, *arguments: Any, **named: Any) -> None:
        state = model.state_dict()
        next(t for n, t in state.items() if "lora_B" in n and t.abs().max() > 0).zero_()
        write(model, *arguments, **named)

    monkeypatch.setattr(export, "write_model", forgetful)
    with pytest.raises(CheckpointError, match=r"deployment\.export_differs_from_model"):
        export_model(lora, None, tmp_path / "out", ExportRequest())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [export_model, export_checkpoint])
def test_nothing_is_written_over(write: Any, tmp_path: Path) -> None:
    other = tmp_path / "out" / "thesis.txt"
    other.parent.mkdir()
    other.write_text("of another work")
    more = [ExportRequest()] if write is export_model else []
    with pytest.raises(ValueError, match=r"core\.folder_not_empty"):
        write(RunDirectory(tmp_path), None, other.parent, *more)
    assert [path.read_text() for path in other.parent.iterdir()] == ["of another work"]


def test_what_ends_an_answer_goes_with_the_model(
    lora: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ollama would write on after it."""
    ends: list[Any] = []
    monkeypatch.setattr(export.Work, "write", lambda work, folder: ends.append(work.ends))
    export_model(lora, None, tmp_path / "out", ExportRequest())
    data: Any = lora.read_run()["data"]
    assert ends == [list(data["end_tokens"])]
    assert ends != [[]]


def test_too_small_a_disk_is_refused_before_work(
    whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(export_request.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(export, "_load", None)
    with pytest.raises(StorageError, match=r"deployment\.export_disk_full"):
        export_model(whole, None, tmp_path / "out", ExportRequest())


def test_the_command_shows_what_was_read_back(
    whole: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(whole.path), str(tmp_path / "out"), "--bits", "16", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["compared"][0]["read_by"] == "transformers"
    assert main(["export", str(whole.path), str(tmp_path / "lora"), "--as", "lora"]) == 2
    assert "deployment.export_run_without_lora" in capsys.readouterr().err


@slow
def test_a_killed_export_leaves_nothing_that_looks_like_one(
    whole: RunDirectory, tmp_path: Path
) -> None:
    """Killed when it has begun to write; the next one sweeps what was left, and is whole."""
    words = ["export", str(whole.path), str(tmp_path / "out"), "--bits", "16"]
    process = start_temper(*words, folder=tmp_path)
    deadline = time.monotonic() + 120
    while not any(tmp_path.glob(".out.*.part/*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (tmp_path / "out").exists()
    assert any(tmp_path.glob(".out.*.part"))
    request = ExportRequest(bits=16)
    export_model(whole, None, tmp_path / "out", request)
    assert facts_of(tmp_path / "out")["compared"][0]["read_by"] == "transformers"
    assert not any(tmp_path.glob(".out.*"))


def test_a_distance_is_relative_and_knows_no_constant() -> None:
    expected = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    assert distance(expected + 3, expected) < 1e-6
    assert distance(expected * 1.1, expected) == pytest.approx(0.1, abs=1e-5)


def test_what_is_too_far_or_written_otherwise_is_refused() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    prompts = [torch.arange(4).unsqueeze(0)]
    compare = Comparer(Reference(prompts, [logits], 1e-3), None)
    assert compare("the same", lambda ids: logits.clone(), prompts).same_choice == 1.0
    wider = torch.nn.functional.pad(logits, (0, 3), value=-1e9)
    near = compare("near", lambda ids: logits + 1e-7 * logits.flip(0))
    shown = re.search(r"distance=([^,]+),", near.words())
    assert shown is not None
    assert 0 < near.facts()["logits_distance"] == float(f"{float(shown[1]):.2g}")  # type: ignore[operator]
    assert compare("padded", lambda ids: wider).distance < 1e-6
    with pytest.raises(CheckpointError, match=r"deployment\.export_differs_from_model"):
        compare("another", lambda ids: logits.flip(0))
    with pytest.raises(CheckpointError, match=r"deployment\.export_differs_from_model"):
        compare("broken", lambda ids: logits * torch.nan)
    with pytest.raises(CheckpointError, match=r"deployment\.export_prompts_differ"):
        compare("other prompts", lambda ids: logits, [prompts[0] + 1])


def test_a_comparison_has_its_figures() -> None:
    compared = Comparison("PEFT", 0.001234, 0.99996, True, 2)
    assert compared.facts() == {
        **{"read_by": "PEFT", "logits_distance": 0.0012, "same_choice": 1.0},
        **{"same_prompt": True, "same_answers": 2},
    }
    assert compared.words() == (
        "deployment.export_read_back(reader=PEFT, distance=0.001234, percent=99.996, "
        "answers=deployment.export_same_answers(num_same=2, num_answers=3), "
        "prompts=deployment.export_prompts_same())"
    )
    for same_prompt, code in ((None, "export_without_tokenizer"), (False, "export_prompts_other")):
        words = replace(compared, same_prompt=same_prompt, same_answers=None).words()
        assert words.endswith(f"answers=, prompts=deployment.{code}())")


@pytest.mark.parametrize(("bits", "tolerance"), [(None, 0.01), (16, 0.05), (8, 0.2), (4, 0.6)])
def test_the_farthest_question_decides_and_few_bits_are_tolerated(
    bits: int | None, tolerance: float
) -> None:
    requested: list[Any] = []

    def answers(folder: Path, tolerance: float) -> int:
        requested.append((folder, tolerance))
        return 2

    logits = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0))
    prompts = [torch.tensor([[n, 4]]) for n in range(3)]
    expected: Any = SimpleNamespace(compare=answers)
    reference = Reference(prompts, [logits[0], logits[1], logits[0]], 0.01, expected)
    compare = Comparer(reference, bits)

    def shifted(share: float) -> Any:
        return lambda ids: logits[int(ids[0, 0]) % 2] * (1 + share * (int(ids[0, 0]) == 1))

    compared = compare("near", shifted(0.99 * tolerance), prompts, Path("out"))
    assert compared.distance == pytest.approx(0.99 * tolerance, rel=1e-3)
    assert (compared.same_answers, requested) == (2, [(Path("out"), tolerance)])
    assert compare.made == [compared]
    assert compare("without answers", shifted(0.0)).same_answers is None
    with pytest.raises(CheckpointError, match=rf"reader=far, .*tolerance={tolerance}\)"):
        compare("far", shifted(1.01 * tolerance))
    other = [*prompts[:2], prompts[2] + 1]
    with pytest.raises(CheckpointError, match=r"export_prompts_differ\(reader=other\)"):
        compare("other", shifted(0.0), other)
    assert len(compare.made) == 2
    flipped = logits.flip(-1)
    half = Comparer(Reference(prompts[:2], [logits[0], flipped[1]], 9.0), None)
    agree = (logits[1].argmax(-1) == flipped[1].argmax(-1)).sum()
    assert half("half", shifted(0.0)).same_choice == pytest.approx(float(4 + agree) / 8)


def test_questions_are_as_short_as_the_model_needs(saved_llama: Path) -> None:
    model: Any = load_saved(saved_llama, device=torch.device("cpu")).model
    tokenizer = load_saved(saved_llama, device=torch.device("cpu")).tokenizer
    assert [ids.tolist() for ids in export.prompts_of(model, None)] == [[[*range(8)]]]
    whole = export.prompts_of(None, tokenizer)
    assert len(whole) == len(QUESTIONS)
    assert max(ids.shape[1] for ids in whole) > 5
    model.config.max_position_embeddings = 5
    assert [ids.tolist() for ids in export.prompts_of(model, tokenizer)] == [
        ids[:, :5].tolist() for ids in whole
    ]
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 0.05)):
        reference = Reference.of(model.to(dtype), tokenizer)
        assert (reference.tolerance, reference.expected) == (tolerance, None)
        assert not model.training


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ([], None),
        (["chat_template.jinja"], "chat_template.jinja"),
        (
            ["additional_chat_templates/b.jinja", "additional_chat_templates/a.jinja"],
            {name: f"additional_chat_templates/{name}.jinja" for name in "ab"},
        ),
        (
            ["chat_template.jinja", "additional_chat_templates/a.jinja"],
            {"default": "chat_template.jinja", "a": "additional_chat_templates/a.jinja"},
        ),
    ],
)
def test_each_template_of_a_tokenizer_is_found(
    files: list[str], template: object, tmp_path: Path
) -> None:
    for name in [*files, "additional_chat_templates/notes.txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert export._saved_template(tmp_path) == template


def test_small_parts_of_an_export(tmp_path: Path, saved_llama: Path) -> None:
    half = torch.nn.Linear(2, 2)
    assert export._in_half(half).weight.dtype is torch.bfloat16
    assert export._in_half(half.to(torch.float16)).weight.dtype is torch.float16
    run = RunDirectory(tmp_path)
    config = DeploymentConfig().to_dict()
    for data, ends in ({"end_tokens": {"a": 1, "b": 2}}, ["a", "b"]), ({}, []), (None, []):
        write_record(run.run_file, {"configuration": config, "data": data})
        assert export._ends(run) == ends
    names = ("float32", "float16", "bfloat16")
    shorts = []
    for dtype in (*names, "float64"):
        write_record(
            run.run_file, {"configuration": config, "model": {"kind": "hub", "dtype": dtype}}
        )
        shorts.append(export._short_dtype(run))
    assert [str(DTYPES[short]).removeprefix("torch.") for short in shorts[:3]] == [*names]
    assert shorts[3] == "auto"
    loaded = load_saved(saved_llama, device=torch.device("cpu"))
    assert export._output_layer(loaded.model) == ["lm_head"]
    known = base_facts(loaded.description)["base_model"]
    for identity, is_refused in (
        ({}, False),
        ({"base_is_frozen": True, "base_model": known}, False),
        ({"base_is_frozen": True, "base_model": "other"}, True),
        ({"base_is_frozen": False, "base_model": "other"}, False),
    ):
        if is_refused:
            name = re.escape(str(loaded.description["name"]))
            with pytest.raises(CheckpointError, match=rf"export_base_differs\(name={name}\)"):
                export._refuse_other_base(identity, loaded)
        else:
            export._refuse_other_base(identity, loaded)


@pytest.mark.parametrize(
    ("bits", "code"),
    [
        (4, "deployment.export_in_4_bits_answers_differ"),
        (8, "deployment.export_in_8_bits_answers_differ"),
        (None, "evaluation.saved_model_differs"),
    ],
)
def test_other_answers_are_put_down_to_rounding_and_name_the_export(
    bits: int | None, code: str
) -> None:
    def compare(folder: Path, tolerance: float) -> int:
        raise OtherAnswersError(folder, "for '1 + 1' it generates '3'")

    expected: Any = SimpleNamespace(compare=compare)
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    reference = Reference([torch.arange(4).unsqueeze(0)], [logits], 1e-3, expected)
    comparer = Comparer(reference, bits, Path("exported/step-3"))
    about = r"\(folder=exported/step-3, difference=for '1 \+ 1' it generates '3'"
    about += rf", distance=0\.0, tolerance={export.TOLERANCES[bits]}\)" if bits else r"\)"
    with pytest.raises(CheckpointError, match=f"^{re.escape(code)}{about}"):
        comparer("transformers", lambda ids: logits, folder=Path(".part-of-it"))


@pytest.mark.parametrize("template", [None, CHATML, "{{ bos_token }}" + CHATML])
def test_a_question_is_written_for_another_program_as_in_training(template: str | None) -> None:
    """Without the first token, which the other program adds."""
    tokenizer = train_tiny_tokenizer(bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    work = Work(None, tokenizer, ExportRequest(), cast(Any, None), [], [])
    talk = [Turn("system", "Be short."), Turn("user", "A?"), Turn("assistant", "B")]
    talk.append(Turn("user", "C?"))
    [question, *_], prompt = work.questions(), work.as_text(talk)
    assert len(work.questions()) == len(QUESTIONS)
    if template is None:
        assert question == f"{QUESTIONS[0]}\n"
        assert prompt == "Be short.\nA?\nB</s>\nC?\n"
    else:
        for turns, text in (([Turn("user", QUESTIONS[0])], question), (talk, prompt)):
            messages = [{"role": turn.role, "content": turn.text} for turn in turns]
            options = {"add_generation_prompt": True, "tokenize": False}
            written = tokenizer.apply_chat_template(messages, **options)
            assert text == written.removeprefix("<s>")
    assert not question.startswith("<s>")


def test_a_model_as_a_function_gives_all_logits_and_keeps_no_cache() -> None:
    given: dict[str, Any] = {}

    class Model(torch.nn.Module):
        def forward(self, **inputs: Any) -> SimpleNamespace:
            given.update(inputs)
            return SimpleNamespace(logits=inputs["input_ids"][..., None] * 2.0)

    ids = torch.arange(6).reshape(2, 3)
    for model in (Model(), Model().eval()):
        function = Work.as_function(SimpleNamespace(model=model))  # type: ignore[arg-type]
        assert function.training == model.training
        assert torch.equal(function(ids), ids[..., None] * 2.0)
        assert given == {"input_ids": ids, "use_cache": False}
