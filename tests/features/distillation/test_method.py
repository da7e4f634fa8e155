"""A teacher must have the tokens of its student, and what does not fit is refused."""

import json
import shutil
from pathlib import Path

import pytest

from infrastructure.training.methods.check import problems_of, refused_settings
from infrastructure.training.methods.method_table import installed_method
from infrastructure.training.methods.trl_training import TrlTraining
from tests.conftest import save_tiny_llama
from tests.training.methods.method_runs import configuration, methods_here

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
