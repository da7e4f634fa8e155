"""What leaves does what was measured: R1, F1 to F5, F7, F17, S12. Effects are tokens, ids, weights
and files, as plain transformers and PEFT read them.
"""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
)

from infrastructure.backup.format.store import Store
from infrastructure.commands.main import main
from infrastructure.config.auto import FULL_LEARNING_RATE, LORA_LEARNING_RATE, learning_rate_for
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.deployment.export import export_model
from infrastructure.deployment.export_request import ExportRequest, Part
from infrastructure.evaluation import plain_reading
from infrastructure.evaluation.plain_reading import Expected, Trained, fixed_questions
from infrastructure.evaluation.prompting import Answerer
from infrastructure.models.saved_model import weights_sha256
from infrastructure.run.checkpoint_paths import best_of, step_of
from infrastructure.run.directory import RunDirectory
from infrastructure.training.methods.check import problems_of
from infrastructure.training.methods.method_table import installed_method
from infrastructure.training.methods.trl_training import Defaults
from infrastructure.training.methods.trl_training import learning_rate as method_rate
from infrastructure.training.model_adapters.multimodal_adapter import MultimodalModelAdapter
from tests.field.results import (
    END,
    ODD,
    QUESTIONS,
    odd,
    plain_answers,
    result,
    save_base,
    tempers_answers,
    train,
    train_seeing,
)
from tests.slow import slow, slow_but
from tests.training.seeing_models import save_llava


def ends_of(folder: Path) -> list[int]:
    known = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    return known if isinstance(known, list) else [known]


def end_of(folder: Path) -> int:
    number: int = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(END)
    return number


@pytest.mark.parametrize("kind", slow_but(["dpo lora"], ["dpo", "dpo lora"]))
def test_r1_a_model_of_a_method_ends_where_its_template_does(kind: str, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "qwen2")
    assert ends_of(base) == [2]
    run = train(tmp_path, base, kind, max_steps=2)
    assert ends_of(run / "final") == [2, end_of(base)]
    assert plain_answers(run / "final") == tempers_answers(run)


MIXTURE = "mixtral, router logits"


@pytest.mark.parametrize("family", slow_but([MIXTURE], ["llama", "gpt2", MIXTURE]))
def test_f3_a_family_answers_as_it_was_measured(family: str, tmp_path: Path) -> None:
    line = result(tmp_path, family, "full")
    assert line.holds, line.what


def test_f3_router_logits_train_and_are_left_out_of_what_is_saved(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "mixtral, router logits")
    run = train(tmp_path, base, "lora", max_steps=3)
    assert "output_router_logits=False" in (run / "final" / "README.md").read_text()
    assert plain_answers(run / "final") == tempers_answers(run)


UNWRITTEN = ("all of sampling, greedy", "early_stopping without beams", "scores without a dict")


@pytest.mark.parametrize("name", slow_but(UNWRITTEN[:1], UNWRITTEN))
def test_f1_a_generation_configuration_that_is_not_written_is_mended(
    name: str, tmp_path: Path
) -> None:
    line = odd(tmp_path, name)
    assert line.kind == "right"
    assert line.holds, line.what
    [final] = tmp_path.glob("runs/*/final")
    saved = json.loads((final / "generation_config.json").read_text())
    assert not set(ODD[name]) - {"do_sample"} & set(saved)


@slow
def test_f1_what_is_sampled_with_stays_in_the_saved_model(tmp_path: Path) -> None:
    line = odd(tmp_path, "sampling")
    assert line.holds, line.what
    [final] = tmp_path.glob("runs/*/final")
    saved = json.loads((final / "generation_config.json").read_text())
    assert ODD["sampling"].items() <= saved.items()


def test_f1_a_configuration_that_cannot_be_saved_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_base(tmp_path / "base", "llama")
    monkeypatch.setattr("transformers.LlamaConfig.save_pretrained", _refusing)
    with pytest.raises(ValueError, match=r"models\.model_cannot_be_saved.*no disk"):
        train(tmp_path, base, "full", max_steps=2)
    assert not [*tmp_path.glob("runs/*/checkpoints/versions/*.json")]


def _refusing(*_: object, **__: object) -> None:
    raise RuntimeError("no disk")


@pytest.mark.parametrize("name", ["repetition_penalty", "suppress_tokens", "num_beams"])
def test_s12_greedy_is_greedy_whatever_the_base_prefers(name: str, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "llama")
    before = tempers_answers(base)
    file = base / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **ODD[name]}))
    assert tempers_answers(base) == before


def quantized_base(folder: Path) -> Path:
    """A base whose files hold 4 bits."""
    from infrastructure.models.quantization import quantization_config

    plain = save_base(folder / "plain", "llama")
    options: dict[str, Any] = {"quantization_config": quantization_config("4bit", torch.float32)}
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, **options)
    model.save_pretrained(folder / "base-4bit")
    AutoTokenizer.from_pretrained(plain).save_pretrained(folder / "base-4bit")
    return folder / "base-4bit"


def test_f2_a_base_of_4_bits_is_merged_and_not_trained_in_full(tmp_path: Path) -> None:
    base = quantized_base(tmp_path)
    with pytest.raises(ValueError, match=r"models\.quantized_full_fine_tuning"):
        train(tmp_path, base, "full")
    assert not [*tmp_path.glob("runs/*/checkpoints/versions/*.json")]
    run = train(tmp_path, base, "lora", max_steps=6)
    export_model(RunDirectory(run), None, tmp_path / "merged", ExportRequest(part=Part.MERGED))
    assert "quantization_config" not in json.loads((tmp_path / "merged/config.json").read_text())
    assert plain_answers(tmp_path / "merged") == tempers_answers(run)


@pytest.fixture(scope="module")
def qlora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a base, and the run of a LoRA on its 4-bit weights."""
    folder = tmp_path_factory.mktemp("qlora")
    base = save_base(folder / "base", "llama")
    return base, train(folder, base, "qlora", max_steps=6)


def test_f2_a_merged_model_has_the_base_that_its_lora_was_trained_beside(
    qlora: tuple[Path, Path], tmp_path: Path
) -> None:
    base, run = qlora
    export_model(RunDirectory(run), None, tmp_path / "merged", ExportRequest(part=Part.MERGED))
    name = "model.layers.1.mlp.down_proj.weight"
    lora = load_file(run / "final" / "adapter_model.safetensors")
    a, b = (lora[f"base_model.model.{name.replace('weight', f'lora_{x}.weight')}"] for x in "AB")
    scale = json.loads((run / "final" / "adapter_config.json").read_text())["lora_alpha"] / 4
    beside = load_file(tmp_path / "merged" / "model.safetensors")[name] - scale * b @ a
    plain = load_file(base / "model.safetensors")[name]
    assert not torch.allclose(beside, plain, atol=1e-4)
    block = beside[0, :64]  # which shares a scale: 16 levels
    assert len(block.div(block.abs().max()).mul(500).round().unique()) <= 16


def test_f2_a_lora_is_measured_beside_the_base_that_it_was_trained_beside(
    qlora: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = qlora
    words = ["eval", str(run), str(run.parents[1] / "rows.jsonl"), "--json"]
    losses = {}
    for given in ("", "4bit", "none"):
        assert main([*words, *(["--quantization", given] if given else [])]) == 0
        losses[given] = json.loads(capsys.readouterr().out)["metrics"]["eval_loss"]
    assert losses[""] == losses["4bit"] != losses["none"]


def test_f4_a_lora_on_a_tied_head_is_merged_into_a_head_of_its_own(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "llama, tied")
    lora = {"r": 4, "target_modules": ["lm_head", "q_proj"]}
    run = train(tmp_path, base, "lora", lora=lora, max_steps=6)
    export_model(RunDirectory(run), None, tmp_path / "merged", ExportRequest(part=Part.MERGED))
    assert plain_answers(tmp_path / "merged") == tempers_answers(run)
    saved = load_file(tmp_path / "merged" / "model.safetensors")
    embedding = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(saved["model.embed_tokens.weight"], embedding)
    assert not torch.equal(saved["lm_head.weight"], embedding)


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The base, and the run of a LoRA of one step."""
    folder = tmp_path_factory.mktemp("lora")
    base = save_base(folder / "base", "llama")
    return base, train(folder, base, "lora", max_steps=1)


def test_f5_a_lora_has_the_learning_rate_of_a_lora_however_it_is_given(
    lora: tuple[Path, Path],
) -> None:
    base, run = lora
    for name in (run, run / "final"):
        config = DeploymentConfig(model={"name": str(name)})
        rate = learning_rate_for(config.training, config.model, from_scratch=False)
        assert rate == LORA_LEARNING_RATE
        assert method_rate(config, Defaults(1e-6, 3.0, None)) == pytest.approx(1e-5)
    whole = DeploymentConfig(model={"name": str(base)})
    rate = learning_rate_for(whole.training, whole.model, from_scratch=False)
    assert rate == FULL_LEARNING_RATE


@pytest.mark.parametrize("more", [[], ["--method", "dpo"]])
def test_f5_no_lora_is_refused_for_a_lora(
    more: list[str],
    lora: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, run = lora
    words = ["train", str(run.parents[1] / "rows.jsonl"), "--model", str(run), "--no-lora", *more]
    assert main([*words, "--output-dir", str(tmp_path / "other")]) == 2
    assert "deployment.lora_despite_full_fine_tuning" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "given", "num_problems"),
    [
        ("dpo", {"label_smoothing": 0.1}, 1),
        ("dpo", {"label_smoothing": 0.1, "loss_type": ["robust"]}, 0),
        ("dpo", {"label_smoothing": 0.1, "loss_type": ["hinge", "exo_pair"]}, 0),
        ("dpo", {"discopop_tau": 0.1, "loss_type": ["ipo"]}, 1),
        ("dpo", {"loss_weights": [0.5]}, 1),
        ("dpo", {"precompute_ref_batch_size": 4}, 1),
        ("dpo", {"precompute_ref_batch_size": 4, "precompute_ref_log_probs": True}, 0),
        ("grpo", {"log_unique_prompts": True}, 1),
        ("grpo", {"log_unique_prompts": True, "log_completions": True}, 0),
    ],
)
def test_f7_an_argument_of_trl_without_effect_is_refused(
    method: str, given: dict[str, Any], num_problems: int
) -> None:
    installed = installed_method(method)
    if not given.keys() <= installed.own_arguments():
        pytest.skip("this TRL has no such argument")
    training: dict[str, Any] = {"method": method, "method_settings": given, "batch_size": 8}
    if method == "grpo":
        training["rewards"] = ["exact_answer"]
    assert len(problems_of(DeploymentConfig(training=training), installed)) == num_problems


def stopping_early(folder: Path) -> Path:
    """A run whose held-out loss rises at the end: its answers can only be learnt by heart."""
    base = save_base(folder / "base", "llama")
    draw = random.Random(0)
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"prompt": f"Is {n}?", "completion": str(draw.randrange(100, 1000))}) + "\n"
            for n in range(36)
        )
    )
    return train(
        folder, base, "full", rows, num_epochs=12, learning_rate=0.02, early_stopping_patience=2,
        validation_frequency=3, checkpoint_frequency=5, checkpoint_seconds=None, keep_best=0,
    )  # fmt: skip


def test_f17_the_trained_model_is_the_best_one_and_is_named_alike_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopping_early(tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    best = best_of(Store(run / "checkpoints"))
    assert best is not None
    assert summary["final_step"] == step_of(best) < summary["steps"]
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = {r["step"]: r["eval_loss"] for r in records if "eval_loss" in r}
    assert summary["final_step"] == min(losses, key=lambda step: losses[step])
    assert summary["after"]["eval_loss"] == pytest.approx(min(losses.values()), rel=1e-4)

    export_model(RunDirectory(run), None, tmp_path / "export", ExportRequest())
    export_model(RunDirectory(run), best, tmp_path / "best", ExportRequest())
    final = load_file(run / "final" / "model.safetensors")
    for name in ("export", "best"):
        weights = load_file(tmp_path / name / "model.safetensors")
        assert all(torch.equal(weights[key], final[key]) for key in final)

    folder = ["--output-dir", str(run.parent)]
    answers = {}
    last_step = f"{run.name}@{summary['steps']}"
    for name in (run.name, f"{run.name}@best", last_step, str(run / "final")):
        assert main(["ask", name, *QUESTIONS[:2], "--json", "--max-tokens", "8", *folder]) == 0
        answers[name] = capsys.readouterr().out
    assert answers[run.name] == answers[f"{run.name}@best"] == answers[str(run / "final")]
    last = run / next(p.name for p in run.glob(f"step-{summary['steps']}-*"))
    assert tempers_answers(last) == plain_answers(last)
    rows = str(tmp_path / "rows.jsonl")
    assert main(["eval", f"{run.name}@best", rows, "--json", *folder]) == 0
    by_version = json.loads(capsys.readouterr().out)["metrics"]
    assert main(["eval", str(run), rows, "--json", *folder]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == by_version
    words = ["train", rows, "--model", last_step, "--max-steps", "1"]
    small = ["--batch-size", "4", "--max-length", "64", "--device", "cpu", "--no-testing"]
    assert main([*words, *small, *folder]) == 0
    [new] = [p for p in run.parent.iterdir() if p.name != run.name and (p / "run.json").exists()]
    recorded = json.loads((new / "run.json").read_text())["model"]
    assert recorded["name"] == str(last)
    assert recorded["base_sha256"] == weights_sha256([last / "model.safetensors"])


def trained_and_saved(folder: Path) -> tuple[Trained, Path]:
    base = save_base(folder / "base", "llama")
    run = train(folder, base, "full", max_steps=20)
    model = AutoModelForCausalLM.from_pretrained(run / "final").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    ends = sorted({2, end_of(base)})
    return Trained(model, tokenizer, fixed_questions(tokenizer), ends), run / "final"


def test_r1_what_was_saved_otherwise_is_noticed(tmp_path: Path) -> None:
    trained, final = trained_and_saved(tmp_path)
    expected = Expected.of(trained)
    assert expected.compare(final) == len(expected.answers) == 3
    settings, weights = final / "generation_config.json", final / "model.safetensors"
    known = json.loads(settings.read_text())
    settings.write_text(json.dumps({**known, "eos_token_id": 2}))
    with pytest.raises(CheckpointError, match=r"evaluation\.saved_ends_missing.*<\|im_end\|>"):
        expected.compare(final)
    settings.write_text(json.dumps(known))
    state = load_file(weights)
    for name in ("model.norm.weight", "model.layers.2.mlp.down_proj.weight"):
        save_file({**state, name: -state[name]}, weights, {"format": "pt"})
        with pytest.raises(CheckpointError, match=r"saved_(answer|logits)_differs?\(prompt=What"):
            expected.compare(final)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"evaluation\.saved_model_unreadable"):
        expected.compare(final)


def seeing_and_saved(folder: Path) -> tuple[Trained, Path]:
    """As a training has it that ends at once."""
    saved = save_llava(folder / "saved")
    processor = AutoProcessor.from_pretrained(saved)
    model = AutoModelForImageTextToText.from_pretrained(saved).eval()
    pictures = PictureTokens(processor, "llava")
    questions = fixed_questions(processor.tokenizer, pictures=pictures)
    assert [len(question.pictures) for question in questions] == [1, 0, 0]
    ends = sorted({processor.tokenizer.eos_token_id, *ends_of(saved)})
    file = saved / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": ends}))
    return Trained(model, processor.tokenizer, questions, ends, pictures=pictures), saved


def change_processor(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "processor_config.json"
    known = json.loads(file.read_text())
    change(known)
    file.write_text(json.dumps(known))


def change_weight(folder: Path, part: str) -> None:
    """Zero the first weight of a part."""
    file = folder / "model.safetensors"
    state = load_file(file)
    name = next(name for name in state if part in name and name.endswith("weight"))
    save_file({**state, name: torch.zeros_like(state[name])}, file, {"format": "pt"})


OTHER_ANSWER = "evaluation.saved_answer_differs(prompt=What is"
DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "mean": (
        lambda folder: change_processor(
            folder, lambda known: known["image_processor"].update(image_mean=[0.5, 0.5, 0.5])
        ),
        "evaluation.saved_processor_differs(name=pixel_values, width=48, height=48)",
    ),
    "number of tokens": (
        lambda folder: change_processor(
            folder, lambda known: known.update(num_additional_image_tokens=2)
        ),
        "evaluation.saved_processor_differs(name=tokens,",
    ),
    "template": (
        lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[0]['role'] }}"),
        "evaluation.saved_processor_template_differs()",
    ),
    "no processor": (
        lambda folder: (folder / "processor_config.json").unlink(),
        "evaluation.saved_model_unreadable(",
    ),
    "projector": (lambda folder: change_weight(folder, "multi_modal_projector"), OTHER_ANSWER),
    "tower": (lambda folder: change_weight(folder, "patch_embedding"), OTHER_ANSWER),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_r1_a_model_that_sees_and_was_saved_otherwise_is_noticed(name: str, tmp_path: Path) -> None:
    trained, saved = seeing_and_saved(tmp_path)
    expected = Expected.of(trained)
    assert expected.compare(saved) == len(expected.answers) == 3
    plant, code = DEFECTS[name]
    plant(saved)
    with pytest.raises(CheckpointError, match=re.escape(code)):
        expected.compare(saved)


def test_r1_a_run_on_pictures_whose_saved_processor_differs_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = MultimodalModelAdapter.save

    def otherwise(self: Any, folder: Path) -> None:
        save(self, folder)
        DEFECTS["mean"][0](folder)

    monkeypatch.setattr(MultimodalModelAdapter, "save", otherwise)
    with pytest.raises(CheckpointError, match=r"evaluation\.saved_processor_differs\(name=pixel_"):
        train_seeing(tmp_path, "llava", "full", max_steps=2)
    [run] = [path.parent for path in tmp_path.glob("runs/*/run.json")]
    assert not (run / "final").exists()
    assert not RunDirectory(run).is_finished()


SEEN = [("llava", "full"), ("gemma3, pictures", "lora"), ("llava", "dpo")]


@pytest.mark.parametrize(("family", "kind"), slow_but([SEEN[0], SEEN[2]], SEEN))
def test_f3_a_model_that_sees_answers_as_it_was_measured(
    family: str, kind: str, tmp_path: Path
) -> None:
    line = result(tmp_path, family, kind)
    assert line.holds, line.what


def test_r1_a_run_whose_saved_model_differs_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_base(tmp_path / "base", "llama")
    save = plain_reading.PlainLoading.read

    def another(self: Any, folder: Path) -> Any:
        model, tokenizer = save(self, folder)
        with torch.no_grad():
            model.model.norm.weight.neg_()
        return model, tokenizer

    monkeypatch.setattr(plain_reading.PlainLoading, "read", another)
    with pytest.raises(CheckpointError, match=r"evaluation\.saved_model_differs"):
        train(tmp_path, base, "full", max_steps=3)
    with pytest.raises(CheckpointError, match=r"evaluation\.saved_model_differs"):
        train(tmp_path, base, "dpo", max_steps=2)
    runs = sorted(path.parent for path in tmp_path.glob("runs/*/run.json"))
    assert len(runs) == 2
    assert not any((run / "final").exists() for run in runs)
    assert not any(RunDirectory(run).is_finished() for run in runs)


def test_answers_of_a_model_are_those_of_its_own_files(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "qwen3")
    answers = [a.text for a in Answerer(base, max_tokens=5, device="cpu").answers(QUESTIONS)]
    assert len({*answers}) > 1
