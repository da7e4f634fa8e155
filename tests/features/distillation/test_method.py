"""A teacher must have the tokens of its student, and what does not fit is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax

from infrastructure.training.methods.check import problems_of, refused_settings
from infrastructure.training.methods.method_table import installed_method
from infrastructure.training.methods.trl_training import TrlTraining
from tests.conftest import save_tiny_llama
from tests.training.methods.method_runs import configuration, methods_here, run_folder, train

pytestmark = pytest.mark.skipif(
    "distillation" not in methods_here(), reason="the installed TRL has no distillation"
)


def test_a_teacher_must_have_the_same_tokens_and_not_only_as_many(
    tmp_path: Path, saved_llama: Path
) -> None:
    teacher = save_tiny_llama(tmp_path / "teacher")
    other = Path(shutil.copytree(teacher, tmp_path / "other"))
    content = json.loads((other / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (other / "tokenizer.json").write_text(json.dumps(content))
    training = TrlTraining(configuration("distillation", tmp_path, saved_llama, teacher), tmp_path)
    loading = training.loading()
    as_model = {name: loading[name] for name in ("dtype", "use_safetensors", "device_map")}
    assert training.more == (
        {"teacher_model_init_kwargs": as_model},
        {"teacher_model": str(teacher)},
    )
    with pytest.raises(ValueError, match=r"distillation\.tokenizer_differs\(teacher=.*other"):
        TrlTraining(configuration("distillation", tmp_path, saved_llama, other), tmp_path)


def with_rows(folder: Path, num_rows: int, seed: int) -> Path:
    """A tiny Llama whose embedding has more rows than its tokenizer has tokens.

    The logits of the rest are large, as no model has been taught about them.
    """
    from transformers import AutoModelForCausalLM

    save_tiny_llama(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
        model.resize_token_embeddings(num_rows)
        model.lm_head.weight[300:] = 2.0 * torch.randn(num_rows - 300, 64)
    model.save_pretrained(folder)
    return folder


def divergence(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """The mean over tokens of what distillation minimizes, from logits (N, V)."""
    s, t = (log_softmax(logits.double(), dim=-1) for logits in (student, teacher))
    if beta in (0.0, 1.0):
        a, b = (t, s) if beta == 0 else (s, t)
        return (a.exp() * (a - b)).sum(-1).mean()
    mixed = (beta * t.exp() + (1 - beta) * s.exp()).log()
    of_each = beta * t.exp() * (t - mixed) + (1 - beta) * s.exp() * (s - mixed)
    return of_each.sum(-1).mean()


@pytest.mark.parametrize(
    ("num_rows", "num_of_teacher", "beta"),
    [(300, 340, 0.0), (340, 300, 0.0), (340, 300, 1.0), (310, 340, 0.5), (340, 340, 0.0)],
)
def test_the_loss_is_that_of_the_tokens_that_both_have(
    tmp_path: Path, num_rows: int, num_of_teacher: int, beta: float
) -> None:
    from transformers import AutoModelForCausalLM

    student = with_rows(tmp_path / "student", num_rows, 1)
    teacher = with_rows(tmp_path / "teacher", num_of_teacher, 2)
    more: dict[str, Any] = {"training": {"beta": beta}}
    config = configuration("distillation", tmp_path, student, teacher, **more)
    trainer = TrlTraining(config, tmp_path).make_trainer(is_new=True)
    trainer.model.eval()
    prompt, answer = torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([[20, 21], [22, 23]])
    ids = {"prompt_ids": prompt, "completion_ids": answer}
    masks = {"prompt_mask": torch.ones_like(prompt), "completion_mask": torch.ones_like(answer)}
    loss = trainer.compute_loss(trainer.model, {**ids, **masks})
    num_shared = min(num_rows, num_of_teacher)
    logits = [
        AutoModelForCausalLM.from_pretrained(folder)(torch.cat([prompt, answer], dim=1))
        .logits[:, 2:-1, :num_shared]
        .reshape(-1, num_shared)
        for folder in (student, teacher)
    ]
    assert loss.item() == pytest.approx(divergence(*logits, beta).item(), rel=1e-4)
    loss.backward()
    gradient = trainer.model.lm_head.weight.grad
    assert gradient.shape == (num_rows, 64)
    assert gradient[:num_shared].any()
    assert not gradient[num_shared:].any()


def test_a_model_with_more_rows_is_distilled_and_keeps_them(tmp_path: Path) -> None:
    """It writes no token of which the teacher has no embedding."""
    student = with_rows(tmp_path / "student", 340, 1)
    teacher = with_rows(tmp_path / "teacher", 300, 2)
    config = configuration(
        "distillation", tmp_path, student, teacher, training={"max_steps": 2, "warmup_steps": 0}
    )
    assert train(config)["status"] == "finished"
    saved = json.loads((run_folder(config) / "final/config.json").read_text())
    assert saved["vocab_size"] == 340


@pytest.mark.parametrize("num_rows", [300, 340])
def test_a_teacher_with_other_tokens_is_refused_whatever_its_rows(
    tmp_path: Path, saved_llama: Path, num_rows: int
) -> None:
    teacher = with_rows(tmp_path / "teacher", num_rows, 2)
    content = json.loads((teacher / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    last = max(vocab, key=vocab.__getitem__)
    vocab[f"{last}{last}"] = vocab.pop(last)
    content["model"]["merges"] = []
    (teacher / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"distillation\.tokenizer_differs\(teacher=.*teacher"):
        TrlTraining(configuration("distillation", tmp_path, saved_llama, teacher), tmp_path)


def test_a_teacher_without_rows_for_all_tokens_is_refused(
    tmp_path: Path, saved_llama: Path
) -> None:
    teacher = Path(shutil.copytree(saved_llama, tmp_path / "teacher"))
    content = json.loads((teacher / "config.json").read_text())
    (teacher / "config.json").write_text(json.dumps({**content, "vocab_size": 200}))
    (teacher / "SHA256SUMS").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"models\.tokenizer_larger_than_model\(.*teacher"):
        TrlTraining(configuration("distillation", tmp_path, saved_llama, teacher), tmp_path)


def test_the_reverse_divergence_is_the_last_one(tmp_path: Path, saved_llama: Path) -> None:
    config = configuration("distillation", tmp_path, saved_llama, tmp_path)
    method = installed_method("distillation").method
    config.training.beta = 1.0
    method.check(config)
    config.training.beta = 1.01
    with pytest.raises(ValueError, match=r"distillation\.beta_above_one\(beta=1\.01\)"):
        method.check(config)


def test_only_distillation_has_a_teacher(tmp_path: Path, saved_llama: Path) -> None:
    config = configuration("distillation", tmp_path, saved_llama, tmp_path)
    assert list(refused_settings(config)) == []
    reasons = {
        "teacher_model_init_kwargs": "distillation.loaded_as_model",
        "teacher_model_name_or_path": "distillation.set_teacher",
    }
    config.training.method_settings = dict.fromkeys(reasons, "x")
    assert problems_of(config, installed_method("distillation")) == [
        f"methods.argument_not_supported(name={name}, reason={code}())"
        for name, code in reasons.items()
    ]
    config.training.method_settings = {}
    config.training.method = "grpo"
    (refusal,) = refused_settings(config)
    assert "training.teacher" in refusal
