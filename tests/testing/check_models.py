"""Healthy trainings of many architectures, tiny and real, to run the checks on."""

import json
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.testing.preflight import INTEGRATION, UNIT, run_check
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Subject
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.trainer_factory import TrainerFactory
from tests.conftest import train_tiny_tokenizer
from tests.models.architectures import GPT2_DROPOUTS, GPT2_SIZES, SIZES

VOCABULARY = 320
CHATML = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LLAMA = {**SIZES, "vocab_size": VOCABULARY}
GPT2 = {**GPT2_SIZES, "vocab_size": VOCABULARY, **dict.fromkeys(GPT2_DROPOUTS, 0.1)}
HEAD_DIM = {**LLAMA, "head_dim": 8}
EXPERTS = {
    **HEAD_DIM,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "output_router_logits": True,
}
GEMMA3 = {
    **HEAD_DIM,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
# name: (class of the configuration in transformers, its arguments)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", LLAMA),
    "qwen2": ("Qwen2Config", LLAMA),
    "qwen3": ("Qwen3Config", HEAD_DIM),
    "phi3": ("Phi3Config", LLAMA),
    "gemma2": ("Gemma2Config", {**HEAD_DIM, "sliding_window": 8}),
    "gemma3": ("Gemma3TextConfig", GEMMA3),
    "gpt2": ("GPT2Config", GPT2),
    "mistral": ("MistralConfig", {**LLAMA, "sliding_window": 6}),
    "phi": ("PhiConfig", LLAMA),
    "granite": ("GraniteConfig", {**LLAMA, "logits_scaling": 8.0}),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "bloom": (
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "lfm2": ("Lfm2Config", {**LLAMA, "layer_types": ["conv", "full_attention"]}),
}


def save_model_of(architecture: str, folder: Path, *, template: bool = True) -> Path:
    """A tiny model with new weights and a tokenizer, as the hub would give them."""
    import transformers

    config_class, arguments = MODELS[architecture]
    config = getattr(transformers, config_class)(**arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = CHATML if template else None
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(folder: Path, num_rows: int = 40) -> Path:
    rows = [
        {"prompt": f"Reverse {n}{'a' * (n % 7)}", "completion": ("a" * (n % 7)) + str(n)[::-1]}
        for n in range(100, 100 + num_rows)
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def settings_of(folder: Path, model: dict[str, Any], **training: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "model": model,
        "data": {"path": str(write_rows(folder)), "max_length": 64, "num_workers": 0},
        "training": {"batch_size": 4, "num_epochs": 1, **training},
        "cache": {"directory": str(folder / "cache")},
        "output_dir": str(folder / "runs"),
        "device": "cpu",
    }


def trainer_of(config: DeploymentConfig) -> EnhancedTrainer:
    return TrainerFactory().for_run(config)


def subject_of(config: DeploymentConfig) -> Subject:
    return Subject(trainer_of(config), lambda: trainer_of(config))


def all_checks(subject: Subject) -> list[CheckResult]:
    """Both tiers but for the timing."""
    unit = [run_check(check, subject) for check in UNIT]
    return unit + [run_check(check, subject, "integration") for check in INTEGRATION]


def by_name(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.name: result for result in results}
