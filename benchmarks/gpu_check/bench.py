"""What every check is given: a folder, a device, random models, rows, and a training."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from benchmarks.throughput.workbench import train_tokenizer
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.samples import SAMPLE_TRAIN
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}
LLAMA_8B: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 8,  # of 32: the width is what speed depends on, and time is short
    "head_dim": 128,
    "tie_word_embeddings": False,
}
PHI4: dict[str, Any] = {
    "model_type": "phi3",
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "num_hidden_layers": 4,  # of 40
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "vocab_size": 100352,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}
TINY: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 8192,
    "max_position_embeddings": 512,
}
LLAMA_1B_NAME, LLAMA_8B_NAME = "llama-3.2-1b", "llama-3.1-8b (8 layers)"
PHI4_NAME, TINY_NAME = "phi-4 (4 layers)", "tiny"
SHAPES = {LLAMA_1B_NAME: LLAMA, LLAMA_8B_NAME: LLAMA_8B, PHI4_NAME: PHI4, TINY_NAME: TINY}
SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
NUM_ROWS, ROW_CHARACTERS = 400, 1600


class SkippedError(Exception):
    """A check that says nothing here, and why."""


@dataclass
class Watched(Observer):
    """Losses and finished tokens of each step, and when it ended."""

    losses: list[float] = field(default_factory=list)

    def step_end(self, state: TrainingState) -> None:
        self.losses.append(state.loss)


@dataclass(frozen=True)
class Bench:
    """Everything lies in `folder`; `device` is "cuda" or "cpu"."""

    folder: Path
    device: str

    @property
    def has_gpu(self) -> bool:
        return self.device == "cuda"

    def require_gpu(self) -> None:
        """
        Raises:
            SkippedError: there is none.
        """
        if not self.has_gpu:
            raise SkippedError("there is no GPU")

    @cached_property
    def rows(self) -> Path:
        """Texts of different lengths, made of the project's own samples."""
        path = self.folder / "rows.jsonl"
        if not path.exists():
            samples = [json.loads(line) for line in SAMPLE_TRAIN.read_text().splitlines()]
            texts = [" ".join(str(value) for value in sample.values()) for sample in samples]
            with path.open("w") as file:
                for number in range(NUM_ROWS):
                    begin, length = number % len(texts), ROW_CHARACTERS * (number % 4 + 1) // 4
                    text = " ".join((texts[begin:] + texts)[: length // 20])[:length]
                    file.write(json.dumps({"text": text}) + "\n")
        return path

    @cached_property
    def tokens_per_row(self) -> float:
        """The mean, as the models' tokenizer counts."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.model("tiny"))
        texts = [json.loads(line)["text"] for line in self.rows.read_text().splitlines()]
        return sum(map(len, tokenizer(texts)["input_ids"])) / len(texts)

    def model(self, shape: str) -> Path:
        """The folder of a model of this shape with random weights; made by who asks first."""
        folder = self.folder / shape.replace(" ", "-")
        if not (folder / "config.json").exists():
            train_tokenizer(self.rows.read_text().splitlines()).save_pretrained(folder)
            torch.manual_seed(0)
            made_on(self.device, shape).save_pretrained(folder)
        return folder

    def trainer(
        self,
        shape: str = "tiny",
        watched: Watched | None = None,
        device: str | None = None,
        max_length: int = 512,
        model: dict[str, Any] | None = None,
        **training: Any,
    ) -> EnhancedTrainer:
        """A trainer on this bench's rows; `training` as in section training."""
        settings = {"max_steps": 8, "batch_size": 8, "learning_rate": 1e-3, "warmup_steps": 0}
        return EnhancedTrainer(
            ModelConfig(name=str(self.model(shape)), **(model or {})),
            TrainingConfig(**{**settings, "validation_interval": None, **training}),
            DataConfig(
                path=str(self.rows), validation_split=0.0, max_length=max_length, num_workers=0
            ),
            device=device or self.device,
            cache_config=CacheConfig(directory=str(self.folder / "cache")),
            hooks=[watched] if watched else [],
        )

    def losses(self, **options: Any) -> list[float]:
        """The loss of each step of a training."""
        watched = Watched()
        self.trainer(watched=watched, **options).train()
        return watched.losses


def largest_difference(actual: list[float], expected: list[float]) -> float:
    """Of two lists of losses, relative to the second."""
    pairs = zip(actual, expected, strict=True)
    return max(abs(a - b) / abs(b) for a, b in pairs)


def made_on(device: str, shape: str) -> Any:
    """A model of this shape in bf16, with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {**SHAPES[shape], **SPECIAL_TOKENS}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
