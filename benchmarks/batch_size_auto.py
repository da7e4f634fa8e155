"""`batch_size: auto` against a hand-made sweep, and 500 steps with what it chose.

    python -m benchmarks.batch_size_auto

A Llama with new weights learns rows of 8 to 248 tokens. `auto` decides by itself. Then each batch
size does steps of the real training loop, the chosen one among them, in turns, so that a busy
machine is busy for all of them; a speed is the best of the rounds. At the end the training that was
chosen does its 500 steps: nothing may run out of memory, and the peak must stay below what was
allowed.

Prints one JSON line; progress to stderr.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.memory_prediction import save_model
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.optimization.peak_memory import peak_memory
from infrastructure.training.enhanced_trainer import EnhancedTrainer

SIZES = (1, 2, 4, 8, 16, 32, 64)
USUAL_STEP = 32
NUM_ROWS = 4000
ROUNDS = 4
EXAMPLES_IN_A_ROUND = 64


def make_trainer(folder: Path, batch_size: Any, **settings: Any) -> EnhancedTrainer:
    values = {"max_steps": 10_000, "mixed_precision": False, "metrics_sinks": [], **settings}
    return EnhancedTrainer(
        ModelConfig(name=str(folder / "model")),
        TrainingConfig(batch_size=batch_size, **values),
        DataConfig(
            path=str(folder / "rows.jsonl"),
            max_length=256,
            train_on="all",
            validation_split=0.0,
            num_workers=0,
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
    )


class Swept:
    """One size of the sweep, or the chosen one: a real training that goes on round after round."""

    def __init__(self, folder: Path, size: int, accumulation: int) -> None:
        self.trainer = make_trainer(folder, size, gradient_accumulation=accumulation)
        self.loop = self.trainer.prepare().loop
        self.batches = cycle(self.loop.data.train_batches(0, 0, self.loop.global_batch_size))
        self.best = 0.0

    def one_round(self) -> None:
        tokens, started = self.trainer.state.num_tokens, time.perf_counter()
        for _ in range(max(1, EXAMPLES_IN_A_ROUND // self.loop.global_batch_size)):
            self.loop.single_step(self.trainer.state, next(self.batches))
        seconds = time.perf_counter() - started
        self.best = max(self.best, (self.trainer.state.num_tokens - tokens) / seconds)


def long_training(folder: Path, num_steps: int) -> dict[str, Any]:
    """The training that auto chooses, with nothing remembered but that choice."""
    trainer = make_trainer(folder, "auto", max_steps=num_steps)
    trainer.prepare()
    budget = trainer.memory_budget.size_bytes(trainer.device)
    with peak_memory(trainer.device) as peak:
        state = trainer.train()
        highest = peak.read()
    return {
        "steps": state.step,
        "out_of_memory": sum(note["kind"] == "out_of_memory" for note in state.recoveries),
        "peak_bytes": highest,
        "budget_bytes": budget,
    }


def write_rows(path: Path) -> None:
    rows = ({"text": "abcdefgh" * (i % 31 + 1)} for i in range(NUM_ROWS))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="of the long training")
    parser.add_argument("--model", default="2 M", help="as in memory_prediction")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model", arguments.model)
        write_rows(folder / "rows.jsonl")
        plan = make_trainer(folder, "auto").batch_plan()
        print(*plan.lines(), sep="\n", file=sys.stderr)
        swept = {
            f"{size} x {USUAL_STEP // size or 1}": Swept(folder, size, USUAL_STEP // size or 1)
            for size in SIZES
        }
        chosen = f"{plan.micro_batch_size} x {plan.gradient_accumulation}"
        if chosen not in swept:
            swept[chosen] = Swept(folder, plan.micro_batch_size, plan.gradient_accumulation)
        for _ in range(ROUNDS):
            for one in swept.values():
                one.one_round()
        speeds = {label: round(one.best) for label, one in swept.items()}
        print(f"tokens/s: {speeds}; auto chose {chosen}", file=sys.stderr)
        share = speeds[chosen] / max(speeds.values())
        swept.clear()
        result = {
            "benchmark": "batch_size_auto",
            "chosen": chosen,
            "share_of_best": round(share, 3),
            "tokens_per_second": speeds,
            "long_training": long_training(folder, arguments.steps),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
