"""Adapters of a tiny Llama, LoRA or not, and examples of different lengths."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.training.core.precision import choose_precision
from infrastructure.training.model_adapters import get_model_adapter
from infrastructure.training.model_adapters.base_adapter import ModelAdapter

FP32 = choose_precision("fp32", torch.device("cpu"))
LORA = LoraConfig(r=4, alpha=8, dropout=0.1)


def examples(count: int, seed: int = 0) -> list[TokenizedExample]:
    """Random tokens, 4 to 20 of them, half supervised."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(random.integers(4, 21))
        ids = random.integers(3, 300, length).astype(np.int32)
        made.append(TokenizedExample(ids, np.arange(length) >= length // 2))
    return made


def adapter_for(
    folder: Path, *, lora: LoraConfig | None = None, packing: bool = True, **settings: Any
) -> ModelAdapter:
    """With LoRA, its matrices are given random values: new ones are zero on one side."""
    config = ModelConfig(name=str(folder), lora_config=lora)
    adapter = get_model_adapter("standard", config, TrainingConfig(**settings), "cpu")
    adapter.data_config = DataConfig(max_length=64, packing=packing)
    model = adapter.initialize_model()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return adapter
