"""Trainers of small models: on rows of varied lengths, for tests of costs; and for three steps."""

import json
from pathlib import Path
from typing import Any

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.enhanced_trainer import EnhancedTrainer

NUM_ROWS = 200


def write_rows(folder: Path, num_rows: int = NUM_ROWS) -> Path:
    """Rows of 2 to 20 words."""
    path = folder / "rows.jsonl"
    rows = [
        {"prompt": f"{i} " + "sky " * (i % 19), "completion": "blue " * (i % 5 + 1)}
        for i in range(num_rows)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small_trainer(
    model: Path,
    folder: Path,
    *,
    lora: LoraConfig | None = None,
    packing: bool = True,
    **settings: Any,
) -> EnhancedTrainer:
    """A trainer that is not prepared yet; what was measured is remembered in `folder`."""
    data = folder / "rows.jsonl"
    values = {"batch_size": 4, "max_steps": 6, "learning_rate": 1e-3, "warmup_steps": 1}
    return EnhancedTrainer(
        ModelConfig(name=str(model), lora_config=lora),
        TrainingConfig(**{**values, **settings}),
        DataConfig(
            path=str(data if data.exists() else write_rows(folder)),
            max_length=128,
            packing=packing,
            num_workers=0,
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
    )


def trainer_of_three_steps(
    model: ModelConfig, folder: Path, learning_rate: float, checkpoints: Path | None = None
) -> EnhancedTrainer:
    """With a checkpoint after each step; the rows lie in `folder`."""
    rows = [{"prompt": f"{n}?", "completion": f"{n * 7 % 10}"} for n in range(12)]
    data = folder / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    return EnhancedTrainer(
        model,
        TrainingConfig(
            batch_size=4,
            num_epochs=1,
            warmup_steps=0,
            learning_rate=learning_rate,
            mixed_precision=False,
            checkpoint_frequency=1,
            keep_checkpoints=9,
        ),
        DataConfig(path=str(data), max_length=48, validation_split=0, num_workers=0),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        checkpoint_directory=checkpoints,
    )
