"""Does training with rounded weights pay? A trained model goes on for some steps, with
`model.quantization_aware` and without: same start, data, seed and steps. Then both are rounded
alike.

    python -m benchmarks.quantization_aware [--seeds 10] [--kind int4] [--start 800] [--steps 400]
        [--keep FOLDER]

FOLDER keeps the starts: another kind begins from them, as it would from its own, to the bit.

The measure, named before any of these seeds was trained: the loss per token of the rounded model on
held-out rows. A gain is that of the model rounded afterwards less that of the model trained
rounded, from the same start; its interval is Student's t over the seeds, 95%.

The model is small on purpose, so that rounding costs something: rows of 32 weights are one group
with one scale (int4 per channel, but for the layers that look at 64). With 64 weights to a row and
a model that had not learnt its task yet, rounding cost 0.013, and there was little to win back.

Prints one JSON line.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.methods import STUDENT_T
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import EmbeddedModelConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.quantization_aware.rounding import RoundedLayers
from infrastructure.training.enhanced_trainer import EnhancedTrainer

SHAPE = EmbeddedModelConfig(
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    intermediate_size=64,
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


def losses(kind: str, is_aware: bool, seed: int, steps: int, start: Path) -> tuple[float, float]:
    """Held-out loss as it trained, and of the rounded model."""
    model = ModelConfig(name=str(start), quantization_aware=kind if is_aware else None)
    trainer = trained(model, seed, steps, 1e-3, start.parent)
    loss = trainer.evaluate()["eval_loss"]
    if not is_aware:  # computes as the rounded model does
        RoundedLayers(kind).apply(trainer.initialize_model(), None, None, may_grow=False)
    return loss, trainer.evaluate()["eval_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--start", type=int, default=800)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--kind", choices=["int4", "int8_int4"], default="int4")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    arms = []
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        rows(folder / "rows.jsonl")
        for seed in range(options.seeds):
            start = folder / f"start-{options.start}-{seed}"
            if not start.exists():
                begun = trained(ModelConfig(embedded=SHAPE), seed, options.start, 3e-3, folder)
                begun.adapter.save(start)
            plain, afterwards = losses(options.kind, False, seed, options.steps, start)
            _, aware = losses(options.kind, True, seed, options.steps, start)
            arms.append((plain, afterwards, aware))
            print(f"seed {seed}: {arms[-1]}", file=sys.stderr, flush=True)
    gains = [afterwards - aware for _, afterwards, aware in arms]
    result = {
        "benchmark": "quantization_aware",
        "kind": options.kind,
        "start": options.start,
        "steps": options.steps,
        "loss_plain": [plain for plain, _, _ in arms],
        "loss_rounded_afterwards": [afterwards for _, afterwards, _ in arms],
        "loss_rounded_aware": [aware for _, _, aware in arms],
        "mean_gain": statistics.fmean(gains),
        "interval_95": interval_of(gains),
    }
    print(json.dumps(result))


def interval_of(gains: list[float]) -> tuple[float, float]:
    """Of the mean, 95%, by Student's t."""
    mean, error = statistics.fmean(gains), statistics.stdev(gains) / len(gains) ** 0.5
    spread = STUDENT_T[len(gains)] * error
    return mean - spread, mean + spread


if __name__ == "__main__":
    main()
