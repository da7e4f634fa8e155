"""What two steps of `test_every_choice` cannot show: conversations, stages, experts, weights that
train rounded. Each is a whole run that is killed in its middle, and goes on by the same command to
the bits of one that nobody disturbed."""

import json
import os
import signal
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.conftest import train_tiny_tokenizer
from tests.deployment.runs import losses, runs_of, small_settings
from tests.faults.kill_storm import in_child
from tests.slow import slow_but
from tests.training.methods.method_runs import trained_weights

NUM_STEPS = 9
KILLED_IN = 6  # its checkpoint is of step 4


class KillInStep(Observer):
    """SIGKILL, with the gradients of a step there."""

    def after_backward(self, state: TrainingState) -> None:
        if state.step == KILLED_IN - 1:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Feature:
    """A training of it.

    Attributes:
        model: "embedded", or a saved one.
        settings: of model and training, by section.
    """

    model: str = "embedded"
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    chats: bool = False


def lora(**more: Any) -> dict[str, Any]:
    return {"lora_config": {"r": 4, "dropout": 0.1, **more}}


CURRICULUM = {"strategy": "curriculum", "curriculum_stages": 2, "num_epochs": 1}
FEATURES = {
    "conversations": Feature("llama", {"model": {"adapter": "dialogue", **lora()}}, chats=True),
    "last answers": Feature(
        "llama", {"model": {"adapter": "dialogue"}, "data": {"train_on": "last_answer"}}, chats=True
    ),
    "stages by length": Feature(settings={"training": CURRICULUM}),
    "stages by loss": Feature(settings={"training": {**CURRICULUM, "curriculum_by": "loss"}}),
    "experts": Feature("mixtral", {"model": lora(dropout=0)}),
    "experts of Qwen": Feature("qwen_moe", {"model": lora(dropout=0)}),
    "DoRA": Feature("llama", {"model": lora(use_dora=True)}),
    "rounded int4": Feature("llama", {"model": {"quantization_aware": "int4"}}),
    "rounded int8_int4": Feature("llama", {"model": {"quantization_aware": "int8_int4"}}),
}
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}</s>{% endgeneration %}{% else %}{{ m['content'] }}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, saved_llama: Path) -> dict[str, Path]:
    """Llama, Mixtral and Qwen's mixture of experts, tiny, with a tokenizer that knows chats."""
    from transformers import (
        AutoModelForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    folder = tmp_path_factory.mktemp("models")
    tokenizer = train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = {
            "llama": AutoModelForCausalLM.from_pretrained(saved_llama),
            "mixtral": MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=4)),
            "qwen_moe": Qwen3MoeForCausalLM(
                Qwen3MoeConfig(**SHAPE, moe_intermediate_size=48, head_dim=16, num_experts=4)
            ),
        }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in made}


def write_chats(path: Path) -> None:
    lines = []
    for n in range(24):
        turns = [("user", f"Reverse {n}"), ("assistant", str(n)[::-1])]
        turns += [("user", "And twice?"), ("assistant", str(n)[::-1] * 2)]
        messages = [{"role": role, "content": content} for role, content in turns]
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines))


def configuration(feature: Feature, folder: Path, models: dict[str, Path]) -> DeploymentConfig:
    folder.mkdir()
    if feature.chats:
        write_chats(folder / "rows.jsonl")
    settings = small_settings(
        folder, num_epochs=3, max_steps=NUM_STEPS, checkpoint_frequency=2, checkpoint_seconds=None
    )
    settings["data"]["validation_split"] = 0.15
    if feature.model != "embedded":
        settings["data"]["max_length"] = 96
        settings["model"] = {"name": str(models[feature.model])}
    for section, values in feature.settings.items():
        settings[section] |= values
    return DeploymentConfig(**settings, enable_monitoring=False)


def ended(config: DeploymentConfig, *observers: Observer) -> int:
    """The status of a process that does the run, or goes on with it."""

    def work() -> None:
        try:
            TrainingDeployment(config, lambda line: None, observers=observers).run()
        except Exception:
            traceback.print_exc()  # which pytest shows: the test fails by the exit code
            raise

    return os.waitpid(in_child(work), 0)[1]


QUICK = ["experts of Qwen"]


@pytest.mark.parametrize("name", slow_but(QUICK, FEATURES))
def test_killed_in_its_middle_it_goes_on_to_the_same_bits(
    tmp_path: Path, models: dict[str, Path], name: str
) -> None:
    feature = FEATURES[name]
    calm, disturbed = (configuration(feature, tmp_path / n, models) for n in ("calm", "disturbed"))
    assert ended(calm) == 0
    assert ended(disturbed, KillInStep()) == signal.SIGKILL
    assert ended(disturbed) == 0
    (first,), (second,) = runs_of(tmp_path / "calm"), runs_of(tmp_path / "disturbed")
    assert torch.equal(trained_weights(first / "final"), trained_weights(second / "final"))
    assert losses(first) == losses(second)
    assert len(losses(second)) == NUM_STEPS
    summary = read_summary(RunDirectory(second))
    assert [went["step"] for went in summary["went_on"]] == [4]
    if feature.model in ("mixtral", "qwen_moe"):
        _check_experts(first, feature)


def _check_experts(run: Path, feature: Feature) -> None:
    """What was forecast and recorded of a mixture of experts is what it was."""
    rows = {row["what"]: row for row in read_summary(RunDirectory(run))["forecast"]}
    assert abs(rows["peak_memory_bytes"]["error"]) < 0.15
    recorded = json.loads((run / "run.json").read_text())["model"]
    weights = trained_weights(run / "final")
    assert recorded["num_trainable"] == weights.numel()
    hidden, between, experts, layers = 64, 96 if feature.model == "mixtral" else 48, 4, 2
    of_experts = 4 * experts * layers * ((hidden + 2 * between) + (between + hidden))
    assert weights.numel() > of_experts  # r = 4, gate and up in one, and down
