"""Does training with rounded weights pay? A trained model goes on for some steps, with
`model.quantization_aware` and without: same start, data, seed and steps. Then both are rounded
alike, and the held-out loss of both rounded models is measured.

    python -m benchmarks.quantization_aware [--seeds 3] [--kind int4] [--steps 300]

Prints one JSON line.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import EmbeddedModelConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.models.quantization_aware import prepare

SHAPE = EmbeddedModelConfig(
    hidden_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=4,
    intermediate_size=128,
    vocab_size=300,
    max_positions=64,
)


def rows(path: Path) -> None:
    """Sums of two numbers below 60, shuffled by a fixed rule."""
    lines = [
        json.dumps({"prompt": f"{a} + {b} =", "completion": str(a + b)})
        for a in range(60)
        for b in range(60)
        if (a * 7 + b * 13) % 3 == 0
    ]
    path.write_text("\n".join(lines))


def trained(
    model: ModelConfig, seed: int, steps: int, rate: float, folder: Path
) -> EnhancedTrainer:
    """A training of so many steps, done."""
    trainer = EnhancedTrainer(
        model,
        TrainingConfig(
            seed=seed,
            batch_size=32,
            max_steps=steps,
            learning_rate=rate,
            warmup_steps=20,
            mixed_precision=False,
            validation_interval=None,
        ),
        DataConfig(
            path=str(folder / "rows.jsonl"), max_length=48, validation_split=0.1, num_workers=0
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
    )
    trainer.train()
    return trainer


def losses(kind: str, is_aware: bool, seed: int, steps: int, folder: Path) -> tuple[float, float]:
    """Held-out loss as it trained, and of the rounded model."""
    start = folder / f"start-{seed}"
    if not start.exists():
        trained(ModelConfig(embedded=SHAPE), seed, steps, 3e-3, folder).adapter.save(start)
    model = ModelConfig(name=str(start), quantization_aware=kind if is_aware else None)
    trainer = trained(model, seed, steps, 1e-3, folder)
    loss = trainer.evaluate()["eval_loss"]
    if not is_aware:
        prepare(trainer.initialize_model(), kind)  # computes as the rounded model does
    return loss, trainer.evaluate()["eval_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kind", choices=["int4", "int8_int4"], default="int4")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows(folder / "rows.jsonl")
        arms = {
            seed: {
                arm: losses(options.kind, arm == "aware", seed, options.steps, folder)
                for arm in ("afterwards", "aware")
            }
            for seed in range(options.seeds)
        }
    gains = [arm["afterwards"][1] - arm["aware"][1] for arm in arms.values()]
    result = {
        "benchmark": "quantization_aware",
        "kind": options.kind,
        "steps": options.steps,
        "loss_plain": [arm["afterwards"][0] for arm in arms.values()],
        "loss_rounded_afterwards": [arm["afterwards"][1] for arm in arms.values()],
        "loss_rounded_aware": [arm["aware"][1] for arm in arms.values()],
        "mean_gain": statistics.fmean(gains),
        "least_gain": min(gains),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
